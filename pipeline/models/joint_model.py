"""The contract of every fitted or trained model: what embedding, indexing and searching use of it.

A class needs no base class to fulfil the contract. `restore` in pipeline.config.stored returns a JointModel. Only the
stages that make models know their classes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias, TypeGuard, TypeVar

import numpy as np

from pipeline.compute.multivectors import Items, MultiVectors, ScoreRule
from pipeline.compute.ragged import Ragged

if TYPE_CHECKING:
    import torch
    from pydantic import JsonValue
    from scipy.sparse import csr_array

    from pipeline.text.sequences import Tokens
    from pipeline.text.trees import Trees

Value = TypeVar("Value")

Features = Mapping[str, np.ndarray]
"""Features of n images: encoder -> (n, its dim), float16 or float32."""

TextVectors: TypeAlias = "np.ndarray | csr_array"
"""The n vectors of one text encoder, (n, dim), sparse or dense."""

WordForms: TypeAlias = "Tokens | Trees"
"""Sentences word by word, as sequences or as parse trees."""

Sentences: TypeAlias = "Mapping[str, TextVectors] | WordForms | Mapping[str, Mapping[str, TextVectors] | WordForms]"
"""Sentences in the form that a model's `sentence_view` names: text encoder -> vectors, words, or, for an ensemble, the
form of each member -> the sentences in this form."""

Settings: TypeAlias = "Mapping[str, JsonValue]"
"""The settings of a model as they are stored."""


def read_setting(settings: Settings, key: str, kind: type[Value]) -> Value:
    """Return the stored setting `key`, which must be of a `kind`. Raises ValueError if it is missing or of another."""
    value = settings.get(key)
    if not isinstance(value, kind):
        raise ValueError(f"the setting {key} is {value!r}, not {kind.__name__}")
    return value


def read_number(settings: Settings, key: str) -> float:
    """Return the stored setting `key`, which must be a number. Raises ValueError if it is missing or not a number."""
    value = settings.get(key)
    if not isinstance(value, int | float):
        raise ValueError(f"the setting {key} is {value!r}, not a number")
    return value


def read_list(settings: Settings, key: str) -> list:
    """Return the stored setting `key`, which must be a list. Raises ValueError if it is missing or of another kind."""
    value = settings.get(key)
    if not isinstance(value, list | tuple):
        raise ValueError(f"the setting {key} is {value!r}, not a list")
    return list(value)


def require_vectors(sentences: "Sentences") -> "Mapping[str, TextVectors]":
    """Return sentences that are text encoder -> vectors. Raises TypeError if they are in another form."""
    if isinstance(sentences, Mapping):
        vectors = {name: block for name, block in sentences.items() if not isinstance(block, Mapping | Ragged)}
        if len(vectors) == len(sentences):
            return vectors
    raise TypeError(f"a model of text encoders' vectors cannot embed {type(sentences).__name__}")


class RegionBlock(Protocol):
    """Regions of n images, image after image.

    `features` (total, dim) holds the features of several encoders side by side, `boxes` (total, 4) x1, y1, x2, y2 in
    original pixels, and `scores` (total,) the confidence of each region. Image i has rows offsets[i] to offsets[i + 1].
    """

    @property
    def features(self) -> np.ndarray: ...
    @property
    def boxes(self) -> np.ndarray: ...
    @property
    def scores(self) -> np.ndarray: ...
    @property
    def offsets(self) -> np.ndarray: ...


class RegionSource(Protocol):
    """The regions of n images, which are read on request."""

    def __len__(self) -> int: ...

    def packed(self, rows: np.ndarray) -> RegionBlock:
        """Read the regions of the images `rows` (k,), in this order."""
        ...


class JointModel(Protocol):
    """A model of the joint space, whose images and sentences can be compared."""

    @property
    def multi_vector(self) -> bool:
        """Whether an item has several vectors: one per region of an image, and one per word of a sentence."""
        ...

    @property
    def sentence_view(self) -> str:
        """The form in which it reads sentences: see `sentences` in pipeline.config.registry.ModelSpec."""
        ...

    @property
    def metric(self) -> str:
        """The comparison of two vectors: `inner_product` or `euclidean`."""
        ...

    @property
    def rule(self) -> ScoreRule | None:
        """The rule that scores two items of several vectors; None if the model is not multi-vector."""
        ...

    @property
    def encoders(self) -> tuple[str, ...]:
        """The image encoders whose features it reads."""
        ...

    @property
    def text_encoders(self) -> tuple[str, ...]:
        """The text encoders whose vectors it reads; none if it reads words."""
        ...

    @property
    def region_encoders(self) -> tuple[str, ...]:
        """The encoders whose features of regions it reads; none if it cannot embed regions."""
        ...

    def to(self, device: "torch.device") -> Self:
        """Compute on `device` from now on, and return this model."""
        ...

    def embed_images(self, features: Features, regions: RegionSource | None = None) -> Items:
        """Embed n images: (n, c) float32, or MultiVectors of arrays from the images' `regions`.

        Only a multi-vector model reads `regions`, and it needs them.
        """
        ...

    def embed_sentences(self, sentences: "Sentences") -> Items:
        """Embed n sentences in the form `sentence_view`: (n, c) float32, or MultiVectors of arrays."""
        ...

    def settings(self) -> Settings:
        """Return what `from_parts` needs beside the tensors, as JSON values."""
        ...

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the parameters by name."""
        ...


class MultiVectorModel(JointModel, Protocol):
    """A model with several vectors per item. `is_multi_vector` tells one from the others."""

    @property
    def rule(self) -> ScoreRule: ...

    def embed_images(self, features: Features, regions: RegionSource | None = None) -> MultiVectors: ...

    def embed_sentences(self, sentences: "Sentences") -> MultiVectors: ...


def is_multi_vector(model: JointModel) -> TypeGuard[MultiVectorModel]:
    """Return whether a model has several vectors per item."""
    return model.multi_vector


def embed_images(model: JointModel, features: Features, regions: RegionSource | None) -> Items:
    """Embed images with their `regions` if the model is multi-vector, else without them."""
    return model.embed_images(features, regions) if model.multi_vector else model.embed_images(features)


class PhraseModel(JointModel, Protocol):
    """A trained model that embeds noun phrases and single regions too."""

    def embed_phrases(self, phrases: "WordForms") -> np.ndarray:
        """Embed p noun phrases: (p, c) float32. A model of trees takes the trees of whole sentences instead."""
        ...

    def embed_regions(self, block: RegionBlock) -> np.ndarray:
        """Embed the r regions of a block, whose features are of the model's encoders in its order: (r, c) float32."""
        ...


class ModelClass(Protocol):
    """A registered class, whose `from_parts` restores a model from its stored `settings()` and `tensors()`."""

    def from_parts(self, settings: Settings, tensors: Mapping[str, np.ndarray]) -> JointModel: ...

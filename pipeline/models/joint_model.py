"""The contract of every fitted or trained model: the methods that embedding, indexing and searching call.

A class needs no base class to fulfil the contract. `restore` in pipeline.config.stored returns a JointModel. Only the
stages that fit or train models know their classes.
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

    from pipeline.text.trees import Trees
    from pipeline.text.vocabulary import Tokens

Value = TypeVar("Value")

Features = Mapping[str, np.ndarray]
"""Features of n images: encoder -> (n, its dim), float16 or float32."""

TextVectors: TypeAlias = "np.ndarray | csr_array"
"""The n vectors of one text encoder, (n, dim), sparse or dense."""

WordForms: TypeAlias = "Tokens | Trees"
"""Sentences word by word, as sequences or as parse trees."""

Sentences: TypeAlias = "Mapping[str, TextVectors] | WordForms | Mapping[str, Mapping[str, TextVectors] | WordForms]"
"""Sentences in the form that a model's `sentence_view` names.

For `vectors` it is a mapping text encoder -> vectors, for `tokens` it is Tokens, and for `phrase-trees` and
`dependency-trees` it is Trees. For `each`, the form of an ensemble, it is a mapping from the form that a member reads
to the sentences in this form.
"""

Settings: TypeAlias = "Mapping[str, JsonValue]"
"""The settings of a model, in the form in which model.json stores them."""


def read_setting(settings: Settings, key: str, kind: type[Value]) -> Value:
    """Return the stored setting `key`, whose type must be `kind`.

    Raises ValueError if it is missing or of another type.
    """
    value = settings.get(key)
    if not isinstance(value, kind):
        raise ValueError(f"its stored setting {key} is {value!r}, but must be of the type {kind.__name__}")
    return value


def read_number(settings: Settings, key: str) -> float:
    """Return the stored setting `key`, which must be a number. Raises ValueError if it is missing or not a number."""
    value = settings.get(key)
    if not isinstance(value, int | float):
        raise ValueError(f"its stored setting {key} is {value!r}, but must be a number")
    return value


def read_list(settings: Settings, key: str) -> list:
    """Return the stored setting `key`, which must be a list. Raises ValueError if it is missing or not a list."""
    value = settings.get(key)
    if not isinstance(value, list | tuple):
        raise ValueError(f"its stored setting {key} is {value!r}, but must be a list")
    return list(value)


def require_vectors(sentences: "Sentences") -> "Mapping[str, TextVectors]":
    """Return `sentences` if they are a mapping text encoder -> vectors. Raises TypeError if they have another form."""
    if isinstance(sentences, Mapping):
        vectors = {name: block for name, block in sentences.items() if not isinstance(block, Mapping | Ragged)}
        if len(vectors) == len(sentences):
            return vectors
    raise TypeError(
        f"this model embeds a mapping of text encoders to vectors, but the sentences are a {type(sentences).__name__}"
    )


class RegionBlock(Protocol):
    """The regions of n images, image after image.

    `features` (total, dim) are the features of several encoders side by side. `boxes` (total, 4) are x1, y1, x2, y2 in
    pixels of the original image. `scores` (total,) are the confidences of the regions. The regions of image i are the
    rows offsets[i] to offsets[i + 1] - 1.
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
    """The regions of n images, which are read from disk on request."""

    def __len__(self) -> int: ...

    def packed(self, rows: np.ndarray) -> RegionBlock:
        """Read the regions of the images with the row numbers `rows` (k,), in this order."""
        ...


class JointModel(Protocol):
    """A model that embeds images and sentences in one space, in which they can be compared."""

    @property
    def multi_vector(self) -> bool:
        """Whether an item has several vectors: one per region of an image, and one per word or relation of a
        sentence."""
        ...

    @property
    def sentence_view(self) -> str:
        """The form in which the model reads sentences. See `sentences` in pipeline.config.registry.ModelSpec."""
        ...

    @property
    def metric(self) -> str:
        """The comparison of two vectors: `inner_product` or `euclidean`."""
        ...

    @property
    def rule(self) -> ScoreRule | None:
        """The rule that scores an image with a sentence if both have several vectors, or None for one vector per
        item."""
        ...

    @property
    def encoders(self) -> tuple[str, ...]:
        """The image encoders whose features the model reads."""
        ...

    @property
    def text_encoders(self) -> tuple[str, ...]:
        """The text encoders whose vectors the model reads. The tuple is empty if the model reads words."""
        ...

    @property
    def region_encoders(self) -> tuple[str, ...]:
        """The encoders whose region features the model reads. The tuple is empty if the model cannot embed regions."""
        ...

    def to(self, device: "torch.device") -> Self:
        """Compute on `device` from now on, and return this model."""
        ...

    def embed_images(self, features: Features, regions: RegionSource | None = None) -> Items:
        """Embed n images from their `features`. Return (n, c) float32, or MultiVectors for a multi-vector model.

        A multi-vector model also needs the `regions` of the images. Other models do not read `regions`.
        """
        ...

    def embed_sentences(self, sentences: "Sentences") -> Items:
        """Embed n sentences, which have the form `sentence_view`. Return (n, c) float32, or MultiVectors of arrays."""
        ...

    def settings(self) -> Settings:
        """Return the settings of the model as JSON values.

        `from_parts` restores the model from them and `tensors()`.
        """
        ...

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the parameters of the model, name -> array."""
        ...


class MultiVectorModel(JointModel, Protocol):
    """A model with several vectors per item. `is_multi_vector` recognises such models."""

    @property
    def rule(self) -> ScoreRule: ...

    def embed_images(self, features: Features, regions: RegionSource | None = None) -> MultiVectors: ...

    def embed_sentences(self, sentences: "Sentences") -> MultiVectors: ...


def is_multi_vector(model: JointModel) -> TypeGuard[MultiVectorModel]:
    """Return whether a model has several vectors per item."""
    return model.multi_vector


def embed_images(model: JointModel, features: Features, regions: RegionSource | None) -> Items:
    """Embed images by `model`. The `regions` are passed on only to a multi-vector model."""
    return model.embed_images(features, regions) if model.multi_vector else model.embed_images(features)


class PhraseModel(JointModel, Protocol):
    """A trained model that can also embed noun phrases and single regions."""

    def embed_phrases(self, phrases: "WordForms") -> np.ndarray:
        """Embed p noun phrases, and return (p, c) float32.

        The model `hmlstm` takes the trees of whole sentences instead, and embeds the noun phrases in them.
        """
        ...

    def embed_regions(self, block: RegionBlock) -> np.ndarray:
        """Embed the r regions of a block, and return (r, c) float32.

        The block has the features of the model's region encoders side by side, in the model's order.
        """
        ...


class ModelClass(Protocol):
    """A registered class of models. `from_parts` restores a model from its stored `settings()` and `tensors()`."""

    def from_parts(self, settings: Settings, tensors: Mapping[str, np.ndarray]) -> JointModel: ...

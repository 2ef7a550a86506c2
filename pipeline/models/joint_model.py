"""The contract of every fitted or trained model: the methods that embedding, indexing and searching call.

A class needs no base class to fulfil the contract. `restore` in pipeline.config.stored returns a JointModel, so that
most code needs only this contract and not the class of a model.
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
"""Features of n images: image encoder -> array (n, the encoder's number of dimensions), float16 or float32."""

TextVectors: TypeAlias = "np.ndarray | csr_array"
"""The vectors of n sentences by one text encoder, (n, dim), as a dense array or a sparse matrix."""

WordForms: TypeAlias = "Tokens | Trees"
"""Sentences word by word, as sequences or as parse trees."""

Sentences: TypeAlias = "Mapping[str, TextVectors] | WordForms | Mapping[str, Mapping[str, TextVectors] | WordForms]"
"""Sentences in the form that a model's `sentence_view` names.

The form `vectors` is a mapping text encoder -> vectors, the form `tokens` is Tokens, and the forms `phrase-trees` and
`dependency-trees` are Trees. The form `each` is for an ensemble, and is a mapping from the form that a member of the
ensemble reads to the sentences in this form.
"""

Settings: TypeAlias = "Mapping[str, JsonValue]"
"""The settings of a model, in the form in which model.json stores them."""


def read_setting(settings: Settings, key: str, kind: type[Value]) -> Value:
    """Return the value of `key` in the stored `settings` of a model. The type of the value must be `kind`.

    Raises ValueError if the key is missing or its value has another type.
    """
    value = settings.get(key)
    if not isinstance(value, kind):
        raise ValueError(
            f"The stored setting {key} is {value!r}, but must be of the type {kind.__name__}. Make the model again."
        )
    return value


def read_number(settings: Settings, key: str) -> float:
    """Return the value of `key` in the stored `settings` of a model. The value must be an int or a float. Raises
    ValueError if the key is missing or its value is not a number."""
    value = settings.get(key)
    if not isinstance(value, int | float):
        raise ValueError(f"The stored setting {key} is {value!r}, but must be a number. Make the model again.")
    return value


def read_list(settings: Settings, key: str) -> list:
    """Return the value of `key` in the stored `settings` of a model as a new list. The value must be a list or a tuple.
    Raises ValueError if the key is missing or its value is not a list."""
    value = settings.get(key)
    if not isinstance(value, list | tuple):
        raise ValueError(f"The stored setting {key} is {value!r}, but must be a list. Make the model again.")
    return list(value)


def require_vectors(sentences: "Sentences") -> "Mapping[str, TextVectors]":
    """Return `sentences` as a mapping text encoder -> vectors. Raises TypeError if `sentences` have another form, such
    as Tokens, Trees or the nested mapping of an ensemble."""
    if isinstance(sentences, Mapping):
        vectors = {name: block for name, block in sentences.items() if not isinstance(block, Mapping | Ragged)}
        if len(vectors) == len(sentences):
            return vectors
    raise TypeError(
        "The model reads sentences as a mapping from text encoders to vectors, but the sentences have another form"
        f" ({type(sentences).__name__}). Encode the sentences with the text encoders of the model."
    )


class RegionBlock(Protocol):
    """The regions of n images, image after image, with one row per region.

    `features` (total, dim) are the features of one or more encoders side by side. `boxes` (total, 4) are x1, y1, x2, y2
    in pixels of the original image. `scores` (total,) are the confidences of the regions. The regions of image i are
    the rows offsets[i] to offsets[i + 1] - 1, for `offsets` (n + 1,).
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
    """The regions of n images, which `packed` reads from disk on request. The length of a source is n."""

    def __len__(self) -> int: ...

    def packed(self, rows: np.ndarray) -> RegionBlock:
        """Read all regions of the k images with the row numbers `rows` (k,). The images of the result are in the order
        of `rows`."""
        ...


class JointModel(Protocol):
    """A model that embeds images and sentences in one space, in which they can be compared."""

    @property
    def multi_vector(self) -> bool:
        """Whether each image and each sentence has several vectors: one per region of an image, and one per word or
        relation of a sentence."""
        ...

    @property
    def sentence_view(self) -> str:
        """The form in which the model reads sentences: `vectors`, `tokens`, `phrase-trees`, `dependency-trees` or
        `each`. The type Sentences describes these forms."""
        ...

    @property
    def metric(self) -> str:
        """The comparison of the vectors of an image and a sentence: `inner_product`, where greater is better, or
        `euclidean`, where a smaller distance is better."""
        ...

    @property
    def rule(self) -> ScoreRule | None:
        """The rule by which a multi-vector model scores an image and a sentence. It is None for a model with one vector
        per image and per sentence, which uses `metric` instead."""
        ...

    @property
    def encoders(self) -> tuple[str, ...]:
        """The names of the image encoders whose features the model reads."""
        ...

    @property
    def text_encoders(self) -> tuple[str, ...]:
        """The names of the text encoders whose vectors the model reads. The tuple is empty if the model reads words."""
        ...

    @property
    def region_encoders(self) -> tuple[str, ...]:
        """The names of the image encoders whose region features the model reads. The tuple is empty if the model cannot
        embed regions."""
        ...

    def to(self, device: "torch.device") -> Self:
        """Move the model to `device`, on which it computes from now on as far as it can. Return the model itself, not a
        copy."""
        ...

    def embed_images(self, features: Features, regions: RegionSource | None = None) -> Items:
        """Embed n images from their `features`. Return an array (n, c) float32, or MultiVectors for a multi-vector
        model.

        A multi-vector model also needs the `regions` of the images. Other models do not read `regions`.
        """
        ...

    def embed_sentences(self, sentences: "Sentences") -> Items:
        """Embed n sentences, given in the form that `sentence_view` names. Return an array (n, c) float32. A
        multi-vector model returns MultiVectors instead, whose vectors are arrays and not tensors."""
        ...

    def settings(self) -> Settings:
        """Return the settings of the model as JSON values, to be stored in model.json.

        The class method `from_parts(settings, tensors)` restores the model from these settings and from `tensors()`.
        """
        ...

    def tensors(self) -> dict[str, np.ndarray]:
        """Return all fitted or trained parameters of the model, name -> array, to be stored."""
        ...


class MultiVectorModel(JointModel, Protocol):
    """A model with several vectors per image and per sentence. `is_multi_vector` recognises such models."""

    @property
    def rule(self) -> ScoreRule: ...

    def embed_images(self, features: Features, regions: RegionSource | None = None) -> MultiVectors: ...

    def embed_sentences(self, sentences: "Sentences") -> MultiVectors: ...


def is_multi_vector(model: JointModel) -> TypeGuard[MultiVectorModel]:
    """Return whether a model has several vectors per image and per sentence. If so, a type checker then treats the
    model as a MultiVectorModel."""
    return model.multi_vector


def embed_images(model: JointModel, features: Features, regions: RegionSource | None) -> Items:
    """Embed n images by `model`, and return the result of its method `embed_images`. The `regions` of the images are
    passed on only to a multi-vector model."""
    return model.embed_images(features, regions) if model.multi_vector else model.embed_images(features)


class PhraseModel(JointModel, Protocol):
    """A trained model that can also embed noun phrases and single regions."""

    def embed_phrases(self, phrases: "WordForms") -> np.ndarray:
        """Embed p noun phrases, and return one vector per phrase, (p, c) float32.

        `phrases` has one item per phrase. For the model `hmlstm` it has the trees of whole sentences instead, and p is
        the number of all noun phrases in these trees.
        """
        ...

    def embed_regions(self, block: RegionBlock) -> np.ndarray:
        """Embed all r regions of a block, and return one vector per region, (r, c) float32.

        The block has the features of the model's region encoders side by side, in the model's order.
        """
        ...


class ModelClass(Protocol):
    """A registered class of models. Its class method `from_parts` restores a model from the stored results of the
    model's methods `settings` and `tensors`."""

    def from_parts(self, settings: Settings, tensors: Mapping[str, np.ndarray]) -> JointModel: ...

"""The inputs from which an encoder is prepared, and the parts of a stored encoder."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Unpack

import numpy as np

from pipeline.foreign.files import read_weights
from pipeline.text.tokens import LONGEST_NGRAM, TermSettings
from pipeline.text.vocabulary import Vocabulary, VocabularySizes
from pipeline.text.wordvectors import WordVectors

if TYPE_CHECKING:
    from PIL import Image

    from pipeline.images.preprocess import TrainImages

Settings = Mapping[str, Any]
"""The JSON settings of a stored encoder, or of a library. The keys differ from class to class. `known_form` of
pipeline.config.stored converts the exceptions that malformed settings cause to an IntegrityError."""

WeightsOrigin = Mapping[str, str | int]
"""The origin of the weights of an encoder: the key `origin`, and a seed, a commit or a SHA-256."""

PLAIN_WORDS = TermSettings(lemmatise=False, stop_words=(), max_ngram=1, max_characters=LONGEST_NGRAM)
"""The settings by which text encoders with word vectors split a text into words."""


class LibraryFiles(Protocol):
    """The folder with the files that another library has saved for a stored encoder, and the paths of these files
    relative to the folder."""

    @property
    def folder(self) -> Path: ...

    @property
    def names(self) -> frozenset[str]: ...


class EncoderParts(NamedTuple):
    """A stored encoder: its `settings` (JSON), its `tensors`, and the files that another library has saved for it, or
    None if there are none."""

    settings: Settings
    tensors: Mapping[str, np.ndarray]
    library: LibraryFiles | None = None


class StoredEncoder(Protocol):
    """An object with the parts of a stored encoder, which `EncoderParts` describes."""

    @property
    def settings(self) -> Settings: ...

    @property
    def tensors(self) -> Mapping[str, np.ndarray]: ...

    @property
    def library(self) -> LibraryFiles | None: ...


class GivenVectors(NamedTuple):
    """n RGB images, or n texts, with their names and their precomputed `vectors` (n, dim) float32."""

    images: Sequence["Image.Image"]
    texts: Sequence[str]
    names: Sequence[str]
    vectors: np.ndarray


class TrainTexts(Protocol):
    """The captions of the train split, and the vocabulary or word vectors that the entry of a text encoder names."""

    def texts(self) -> Iterable[str]:
        """Return the training captions."""
        ...

    def learn_vocabulary(self, settings: TermSettings, **sizes: Unpack[VocabularySizes]) -> Vocabulary:
        """Learn a vocabulary of the training captions. pipeline.text.vocabulary.learn_vocabulary has the details."""
        ...

    def vocabulary(self) -> Vocabulary | None:
        """Read the vocabulary in the file that the entry names, or return None if it names no file."""
        ...

    def corpus(self) -> WordVectors:
        """Read the word vectors that the run has trained on its captions."""
        ...

    def file(self, wanted: Collection[str]) -> WordVectors:
        """Read word vectors from the file that the entry names: the first words in the file and the `wanted` words."""
        ...


@dataclass(frozen=True)
class EncoderMaterial:
    """The inputs of an encoder's `prepare`, besides its entry in the configuration.

    `regions` has the settings of the section `regions`. `base` is the stored encoder that the entry names in `of` or
    `made_by`, and `given` has some of the precomputed vectors. `images` are the training photos, which only image
    encoders that learn have. `texts` are the training captions and the vocabularies, which only text encoders have.
    """

    seed: int
    weights_root: Path
    regions: Mapping[str, Any] = field(default_factory=dict)
    base: StoredEncoder | None = None
    given: GivenVectors | None = None
    images: "TrainImages | None" = None
    texts: TrainTexts | None = None

    def weights(self, file: str, sha256: str | None) -> tuple[bytes, str]:
        """Read a file of weights below weights_root. Return its content and its SHA-256.

        Raises InputError if the file cannot be read, or if `sha256` is given and differs.
        """
        return read_weights(self.weights_root / file, sha256)

"""The inputs from which encoders are made, and the parts in which they are stored."""

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
"""The JSON settings of a stored encoder, or of a library. Each class has keys of its own, and `known_form` of
pipeline.config.stored turns whatever a class raises about another form into an IntegrityError."""

WeightsOrigin = Mapping[str, str | int]
"""Where the weights of an encoder come from: `origin`, and a seed, a commit or a SHA-256."""

PLAIN_WORDS = TermSettings(lemmatise=False, stop_words=(), max_ngram=1, max_characters=LONGEST_NGRAM)
"""The words of a text to encoders of word vectors."""


class LibraryFiles(Protocol):
    """The files of another library that belong to a stored encoder: their folder, and their paths below it."""

    @property
    def folder(self) -> Path: ...

    @property
    def names(self) -> frozenset[str]: ...


class EncoderParts(NamedTuple):
    """A stored encoder: its `settings` (JSON), its `tensors`, and the files of the library that it is a model of."""

    settings: Settings
    tensors: Mapping[str, np.ndarray]
    library: LibraryFiles | None = None


class StoredEncoder(Protocol):
    """An object that has the parts of a stored encoder."""

    @property
    def settings(self) -> Settings: ...

    @property
    def tensors(self) -> Mapping[str, np.ndarray]: ...

    @property
    def library(self) -> LibraryFiles | None: ...


class GivenVectors(NamedTuple):
    """Some RGB images, or some texts, their names, and their precomputed `vectors` (n, dim) float32."""

    images: Sequence["Image.Image"]
    texts: Sequence[str]
    names: Sequence[str]
    vectors: np.ndarray


class TrainTexts(Protocol):
    """The captions of the train split, and the vocabularies and word vectors of a run and its user."""

    def texts(self) -> Iterable[str]:
        """Return the training captions."""
        ...

    def learn_vocabulary(self, settings: TermSettings, **sizes: Unpack[VocabularySizes]) -> Vocabulary:
        """Learn a vocabulary of the training captions; see pipeline.text.vocabulary.learn_vocabulary."""
        ...

    def vocabulary(self) -> Vocabulary | None:
        """Read the vocabulary that the user has given in the entry, or return None."""
        ...

    def corpus(self) -> WordVectors:
        """Read the run's own word vectors."""
        ...

    def file(self, wanted: Collection[str]) -> WordVectors:
        """Read the vectors in the entry's file, of its first words and of the `wanted` words."""
        ...


@dataclass(frozen=True)
class EncoderMaterial:
    """Everything that `prepare` needs besides the entry of the configuration.

    `regions` are the settings of the section of that name. `base` is the stored encoder that the entry names in `of`
    or `made_by`, and `given` are some of its precomputed vectors. `images` are the training photos; only image encoders
    that learn have them. `texts` are the training captions and the vocabularies; every text encoder has them, and no
    image encoder.
    """

    seed: int
    weights_root: Path
    regions: Mapping[str, Any] = field(default_factory=dict)
    base: StoredEncoder | None = None
    given: GivenVectors | None = None
    images: "TrainImages | None" = None
    texts: TrainTexts | None = None

    def weights(self, file: str, sha256: str | None) -> tuple[bytes, str]:
        """Read a file of weights, and return it with its SHA-256, which is compared with `sha256` if that is given."""
        return read_weights(self.weights_root / file, sha256)

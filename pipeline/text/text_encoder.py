"""The base class of text encoders, the inputs for making one, and what stands around one."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from pipeline.given_vectors import require_made_by
from pipeline.text.tokens import TermSettings
from pipeline.text.vocabulary import KnownTerms, Vocabulary
from pipeline.text.wordvectors import WordVectors

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Rows = np.ndarray | csr_array


BLOCK = 4096
"""Texts encoded at once while an encoder learns."""
WHITENED = 1e-6
"""Share of the largest variance below which a direction is left out of whitened vectors."""
CENTRED = "centred"
POOR = 0.1
"""Share of dev's sentences without a known word, or of its words that are unknown, above which a person is warned."""


class GivenVectors(NamedTuple):
    """Some texts, and their `vectors` (n, dim) float32 that were made elsewhere."""

    texts: Sequence[str]
    vectors: np.ndarray


class TextMaterial(Protocol):
    """The inputs for making a text encoder, beside its entry: the `seed`, and how a text becomes its `words`."""

    seed: int
    words: TermSettings

    def texts(self) -> Iterable[str]:
        """The training sentences."""
        ...

    def learn_vocabulary(self, settings: TermSettings, **chosen: Any) -> Vocabulary:
        """The vocabulary of the training sentences; see pipeline.text.vocabulary.learn_vocabulary."""
        ...

    def vocabulary(self) -> Vocabulary | None:
        """A vocabulary that a person brought; None where there is none."""
        ...

    def corpus(self) -> WordVectors:
        """The run's own word vectors."""
        ...

    def file(self, wanted: Collection[str]) -> WordVectors:
        """The vectors in the entry's file, of its first words and of those that are `wanted`."""
        ...

    def folder(self, name: str) -> Path | None:
        """A folder that lies with the weights; None where there is none."""
        ...

    def encoder(self, name: str) -> "TextEncoder":
        """Another text encoder of the run."""
        ...

    def given(self, entry: Any) -> GivenVectors:
        """Some sentences with the vectors that an entry names."""
        ...


class TextEncoder:
    """Texts to vectors of `dim` values; this base knows every word.

    A kind has `dim` and `encode`, and `settings`, `tensors`, `prepare` and `from_parts` unless its class needs nothing
    to be made; a registered one has its name, `kind`, in its settings. One that does not know every word has `knows`,
    `searches`, `unknown`, `count_words` and `suggest` too, and zeros for a text of unknown words.
    """

    kind: ClassVar[str]
    dim: int
    terms: Sequence[str] = ()
    """The words, and pairs of words, of which it knows the meaning, if these can be listed."""

    def encode(self, texts: Sequence[str]) -> "Rows":
        """(n, dim) float32."""
        raise NotImplementedError

    def encode_query(self, texts: Sequence[str]) -> "Rows":
        """As `encode`, of a few texts, in whatever form is made sooner."""
        return self.encode(texts)

    def encode_words(self, words: Sequence[str]) -> "Rows":
        """(n, dim): what each word alone adds to the vector of a sentence, up to the sentence's own factor; zeros for
        an unknown word. Only of a kind whose spec says that it `adds_words`."""
        return self.encode(words) * self.word_factors(words)[:, None]

    def word_factors(self, words: Sequence[str]) -> np.ndarray:
        """(n,): how much each word counts in the vector of a sentence, which is the weighted mean of those of its
        words."""
        raise NotImplementedError

    def knows(self, text: str) -> bool:
        """Whether the vector of `text` means anything."""
        return bool(text.strip())

    def searches(self, text: str) -> bool:
        """Whether it makes sense to search for `text`: it has known words that are not stop words alone."""
        return self.knows(text)

    def unknown(self, text: str) -> list[str]:
        """The words of `text` that it does not know, each once."""
        return []

    def count_words(self, text: str) -> tuple[int, int]:
        """How many words `text` has, and how many of them it does not know."""
        return len(text.split()), 0

    def suggest(self, word: str) -> str | None:
        """The known word that is nearest to `word` by its spelling; None where none is near."""
        return None

    def settings(self) -> dict[str, Any]:
        """JSON values for `from_parts`."""
        return {}

    def tensors(self) -> dict[str, np.ndarray]:
        return {}

    @classmethod
    def prepare(cls, entry: Any, material: TextMaterial) -> "TextEncoder":
        """The encoder of an `entry` of the configuration."""
        return cls()

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "TextEncoder":
        """The encoder that `settings` and `tensors` came from. ValueError where they do not fit together."""
        return cls()


class Centred(TextEncoder):
    """The dense vectors of another `encoder` as (y - mean) M, and zeros still for a text that it does not know;
    `matrix` M is (dim, dim) or None, the identity."""

    def __init__(self, encoder: TextEncoder, mean: np.ndarray, matrix: np.ndarray | None) -> None:
        if mean.shape != (encoder.dim,) or (matrix is not None and matrix.shape != (encoder.dim, encoder.dim)):
            raise ValueError("the mean or the matrix does not fit the vectors")
        self.encoder, self.mean, self.matrix = encoder, mean, matrix
        self.dim, self.terms = encoder.dim, encoder.terms

    @classmethod
    def fit(cls, encoder: TextEncoder, texts: Iterable[str], whiten: bool) -> "Centred":
        """By the mean of the `texts` that it knows, and with `whiten` by their covariance: all variances become 1, but
        for directions without any."""
        n, total, square = 0, np.zeros(encoder.dim), np.zeros((encoder.dim, encoder.dim) if whiten else 0)
        for block in blocks(filter(encoder.knows, texts)):
            n += len(block)
            rows = encoder.encode(block).astype(np.float64)
            total += rows.sum(axis=0)
            if whiten:
                square += rows.T @ rows
        mean, matrix = total / max(n, 1), None
        if whiten:
            values, vectors = np.linalg.eigh(square / max(n, 1) - np.outer(mean, mean))
            kept = values > WHITENED * values[-1]
            scale = np.where(kept, 1 / np.sqrt(np.where(kept, values, 1)), 0)
            matrix = ((vectors * scale) @ vectors.T).astype(np.float32)
        return cls(encoder, mean.astype(np.float32), matrix)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        rows = self.shift(self.encoder.encode(texts))
        rows[[not self.knows(text) for text in texts]] = 0
        return rows

    def shift(self, rows: np.ndarray) -> np.ndarray:
        """(n, dim) from vectors (n, dim) of the other encoder."""
        shifted = rows - self.mean
        return shifted if self.matrix is None else shifted @ self.matrix

    def word_factors(self, words: Sequence[str]) -> np.ndarray:
        return self.encoder.word_factors(words)

    def knows(self, text: str) -> bool:
        return self.encoder.knows(text)

    def searches(self, text: str) -> bool:
        return self.encoder.searches(text)

    def unknown(self, text: str) -> list[str]:
        return self.encoder.unknown(text)

    def count_words(self, text: str) -> tuple[int, int]:
        return self.encoder.count_words(text)

    def suggest(self, word: str) -> str | None:
        return self.encoder.suggest(word)

    def settings(self) -> dict[str, Any]:
        return {**self.encoder.settings(), CENTRED: True}

    def tensors(self) -> dict[str, np.ndarray]:
        parts = {"mean": self.mean} | ({} if self.matrix is None else {"matrix": self.matrix})
        return {**self.encoder.tensors(), **{f"{CENTRED}/{name}": value for name, value in parts.items()}}

    @classmethod
    def around(cls, encoder: TextEncoder, tensors: Mapping[str, np.ndarray]) -> "Centred":
        """`encoder` with the mean and matrix among `tensors`."""
        return cls(encoder, tensors[f"{CENTRED}/mean"], tensors.get(f"{CENTRED}/matrix"))


@dataclass(frozen=True)
class Coverage:
    """How much of some `sentences` a text encoder or a vocabulary knows: in `without` of them it knows no word, and of
    all their `words` it does not know `unknown`."""

    sentences: int
    without: int
    words: int
    unknown: int

    @classmethod
    def measure(cls, encoder: TextEncoder | KnownTerms, texts: Iterable[str]) -> "Coverage":
        sentences = without = words = unknown = 0
        for text in texts:
            count, missing = encoder.count_words(text)
            sentences += 1
            without += not encoder.knows(text)
            words += count
            unknown += missing
        return cls(sentences, without, words, unknown)

    @property
    def is_poor(self) -> bool:
        """Whether more than POOR of the sentences, or of their words, are lost."""
        return self.without > POOR * self.sentences or self.unknown > POOR * self.words

    def __str__(self) -> str:
        known = f"{self.without:,} of {self.sentences:,} dev sentences have no known word"
        return f"{known}; {100 * self.unknown / max(self.words, 1):.1f} % of their words are unknown"


def blocks(texts: Iterable[str]) -> Iterator[Sequence[str]]:
    """`texts` in blocks."""
    texts = iter(texts)
    return iter(lambda: list(islice(texts, BLOCK)), [])


class ImportedTextEncoder:
    """The kind of vectors made elsewhere. What is stored of one is the encoder that its entry says has made them."""

    @classmethod
    def prepare(cls, entry: Any, material: TextMaterial) -> TextEncoder:
        """The text encoder `made_by`. Raises InputError where it encodes some sentences otherwise than was given."""
        own = entry.own
        encoder, given = material.encoder(own.made_by), material.given(entry)
        ours = encoder.encode(given.texts)
        require_made_by(given.vectors, ours, given.texts, own.path, entry.name, own.made_by)
        return encoder

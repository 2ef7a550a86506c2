"""Sentences as sequences of words, each word the number of its row in a vocabulary."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from pipeline.text.tokens import make_analyzer
from pipeline.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Tokens:
    """m sentences one after another: the words of sentence i are ids[offsets[i] : offsets[i + 1]].

    `ids` (total,) int32, `offsets` (m + 1,) int64. A word outside a vocabulary of V terms has the id V.
    """

    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.ids[start:stop] for start, stop in zip(self.offsets[:-1], self.offsets[1:], strict=True))

    @property
    def lengths(self) -> np.ndarray:
        """(m,) words in each sentence."""
        return np.diff(self.offsets)

    def take(self, rows: np.ndarray) -> "Tokens":
        """The sentences `rows` (k,), in that order."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return Tokens(self.ids[np.repeat(self.offsets[:-1][rows], lengths) + inside], offsets)


def encode_tokens(texts: Iterable[str], vocabulary: Vocabulary) -> Tokens:
    """`texts` over a vocabulary of single words. A text without any word is a sentence of length 0."""
    analyze, index, unknown = make_analyzer(vocabulary.settings), vocabulary.index, len(vocabulary.terms)
    sentences = [[index.get(word, unknown) for word in analyze(text)] for text in texts]
    offsets = np.cumsum([0, *map(len, sentences)], dtype=np.int64)
    return Tokens(np.fromiter((i for ids in sentences for i in ids), np.int32, offsets[-1]), offsets)

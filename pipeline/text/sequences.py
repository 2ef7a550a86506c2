"""Sentences as sequences of words, each word the number of its row in a vocabulary."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from pipeline.ragged import Ragged, offsets_of
from pipeline.text.tokens import make_analyzer
from pipeline.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Tokens(Ragged):
    """m sentences one after another: the words of sentence i are ids[offsets[i] : offsets[i + 1]].

    `ids` (total,) int32, `offsets` (m + 1,) int64. A word outside a vocabulary of V terms has the id V.
    """

    ids: np.ndarray
    offsets: np.ndarray

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.ids[start:stop] for start, stop in zip(self.offsets[:-1], self.offsets[1:], strict=True))


def encode_tokens(texts: Iterable[str], vocabulary: Vocabulary) -> Tokens:
    """`texts` over a vocabulary of single words. A text without any word is a sentence of length 0."""
    analyze, index, unknown = make_analyzer(vocabulary.settings), vocabulary.index, len(vocabulary.terms)
    sentences = [[index.get(word, unknown) for word in analyze(text)] for text in texts]
    offsets = offsets_of(list(map(len, sentences)))
    return Tokens(np.fromiter((i for ids in sentences for i in ids), np.int32, offsets[-1]), offsets)

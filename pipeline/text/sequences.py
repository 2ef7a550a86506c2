"""Sentences as sequences of word ids."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from pipeline.compute.ragged import Ragged, offsets_of
from pipeline.text.tokens import make_analyzer
from pipeline.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Tokens(Ragged):
    """The word ids of m sentences. The words of sentence i are ids[offsets[i] : offsets[i + 1]].

    `ids` is (total,) int32 and `offsets` is (m + 1,) int64. Unknown words have the id V, for a vocabulary of V terms.
    """

    ids: np.ndarray
    offsets: np.ndarray

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.ids[start:stop] for start, stop in pairwise(self.offsets))


def encode_tokens(texts: Iterable[str], vocabulary: Vocabulary) -> Tokens:
    """Encode texts as ids of words in a vocabulary of single words. A text without words has length 0."""
    analyze, index, unknown = make_analyzer(vocabulary.settings), vocabulary.index, len(vocabulary.terms)
    sentences = [[index.get(word, unknown) for word in analyze(text)] for text in texts]
    offsets = offsets_of(list(map(len, sentences)))
    return Tokens(np.fromiter(chain.from_iterable(sentences), np.int32, offsets[-1]), offsets)

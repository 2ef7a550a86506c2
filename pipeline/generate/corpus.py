"""The training sentences, and their similarity to new ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy import sparse

from pipeline.text.sequences import Tokens, encode_tokens
from pipeline.text.tfidf import unit_rows
from pipeline.text.tokens import make_analyzer
from pipeline.text.vocabulary import Vocabulary

BLOCK = 256
"""Sentences compared with all training sentences at once."""


@dataclass(frozen=True)
class Likeness:
    """The position `row` of the nearest training sentence, its cosine, and whether it is the same word by word."""

    row: int
    cosine: float
    verbatim: bool


class Corpus:
    """m training sentences: `texts` (m,) and their `tokens` over `vocabulary`."""

    def __init__(self, texts: Sequence[str], tokens: Tokens, vocabulary: Vocabulary) -> None:
        self.texts, self.tokens, self.vocabulary = texts, tokens, vocabulary

    def likeness(self, sentences: Sequence[str]) -> list[Likeness]:
        """The nearest training sentence to each of `sentences`, by the cosine of idf-weighted bags of words."""
        tokens = encode_tokens(sentences, self.vocabulary)
        queries, found = self._bags(tokens), []
        for start in range(0, len(sentences), BLOCK):
            cosines = (queries[start : start + BLOCK] @ self._transposed).tocsr()
            for first, last in pairwise(cosines.indptr):
                best = first + cosines.data[first:last].argmax() if first < last else None
                row, cosine = (0, 0.0) if best is None else (cosines.indices[best], cosines.data[best])
                found.append(Likeness(int(row), float(cosine), False))
        same = (self._rows.get(ids.tobytes()) for ids in tokens)
        return [near if row is None else Likeness(row, 1.0, True) for near, row in zip(found, same, strict=True)]

    @cached_property
    def analyze(self) -> Callable[[str], list[str]]:
        """The function text -> words."""
        return make_analyzer(self.vocabulary.settings)

    @cached_property
    def _rows(self) -> dict[bytes, int]:
        unknown = len(self.vocabulary.terms)
        return {ids.tobytes(): row for row, ids in enumerate(self.tokens) if unknown not in ids}

    @cached_property
    def _weights(self) -> np.ndarray:
        present = self._counts(self.tokens)
        present.data[:] = 1
        return np.log1p(len(self.tokens) / (1 + present.sum(axis=0))).astype(np.float32)

    @cached_property
    def _transposed(self) -> sparse.csr_array:
        return self._bags(self.tokens).T.tocsr()

    def _counts(self, tokens: Tokens) -> sparse.csr_array:
        """(m, V + 1) counts of each sentence's words, the unknown word last."""
        # sum_duplicates changes ids and offsets in place.
        parts = (np.ones(len(tokens.ids), np.float32), tokens.ids.copy(), tokens.offsets.copy())
        counts = sparse.csr_array(parts, shape=(len(tokens), len(self.vocabulary.terms) + 1))
        counts.sum_duplicates()
        return counts

    def _bags(self, tokens: Tokens) -> sparse.csr_array:
        counts = self._counts(tokens)
        counts.data *= self._weights[counts.indices]
        return unit_rows(counts)

"""The training sentences: what a generator has read, and how near to it a new sentence comes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from pipeline.text.sequences import Tokens, encode_tokens
from pipeline.text.tfidf import unit_rows
from pipeline.text.tokens import make_analyzer
from pipeline.text.vocabulary import Vocabulary

BLOCK = 256
"""Sentences that are compared with all training sentences at once."""


@dataclass(frozen=True)
class Likeness:
    """The training sentence `row` nearest to a sentence, their cosine, and whether they are the same word by word."""

    row: int
    cosine: float
    verbatim: bool


class Corpus:
    """m training sentences, `texts` (m,) and their words `tokens` over `vocabulary`."""

    def __init__(self, texts: Sequence[str], tokens: Tokens, vocabulary: Vocabulary) -> None:
        self.texts, self.tokens, self.vocabulary = texts, tokens, vocabulary

    def likeness(self, sentences: Sequence[str]) -> list[Likeness]:
        """Of each of `sentences`, by the cosine of bags of words that are weighted by inverse document frequency."""
        tokens = encode_tokens(sentences, self.vocabulary)
        queries, found = self._bags(tokens), []
        for start in range(0, len(sentences), BLOCK):
            cosines = (queries[start : start + BLOCK] @ self._transposed).tocsr()
            for i in range(cosines.shape[0]):
                part = slice(cosines.indptr[i], cosines.indptr[i + 1])
                best = cosines.data[part].argmax() if part.start < part.stop else None
                row, cosine = (0, 0.0) if best is None else (cosines.indices[part][best], cosines.data[part][best])
                found.append((int(row), float(cosine)))
        known = [ids.tobytes() for ids in tokens]
        rows = [self._rows.get(ids) for ids in known]
        return [
            Likeness(row, cosine, False) if same is None else Likeness(same, 1.0, True)
            for (row, cosine), same in zip(found, rows, strict=True)
        ]

    def words(self, row: int) -> tuple[str, ...]:
        """The words of sentence `row`, known or not."""
        return tuple(self._analyze(self.texts[row]))

    @cached_property
    def _analyze(self) -> Callable[[str], list[str]]:
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
        """(m, V + 1) how often each sentence has each word, the unknown one last."""
        # Summing duplicates changes ids and offsets in place.
        parts = (np.ones(len(tokens.ids), np.float32), tokens.ids.copy(), tokens.offsets.copy())
        counts = sparse.csr_array(parts, shape=(len(tokens), len(self.vocabulary.terms) + 1))
        counts.sum_duplicates()
        return counts

    def _bags(self, tokens: Tokens) -> sparse.csr_array:
        counts = self._counts(tokens)
        counts.data *= self._weights[counts.indices]
        return unit_rows(counts)

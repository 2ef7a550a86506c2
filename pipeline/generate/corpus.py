"""The training sentences: a search for the sentence nearest to a generated caption, and a Kneser-Ney trigram model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy import sparse

from pipeline.compute.ragged import offsets_of, runs
from pipeline.encoders.tfidf import unit_rows
from pipeline.text.tokens import make_analyzer
from pipeline.text.vocabulary import Tokens, Vocabulary, encode_tokens

QUERY_BLOCK = 256
"""Maximum number of generated captions that are compared with all training sentences at once."""
DISCOUNT = 0.1
"""The number that Kneser-Ney smoothing subtracts from every count above 0 (d in Trigram). nltk.lm.KneserNeyInterpolated
has the same default."""


@dataclass(frozen=True)
class Likeness:
    """The training sentence that is nearest to a generated caption. `row` is the position of the training sentence in
    the corpus, and `cosine` is the similarity of caption and training sentence, from 0 to 1. `verbatim` is whether the
    caption has the words of the training sentence in the same order, and all of these words are in the vocabulary."""

    row: int
    cosine: float
    verbatim: bool


class Corpus:
    """The m sentences of the split train: `texts` has their texts, and `tokens` the ids of their words in `vocabulary`,
    in the same order."""

    def __init__(self, texts: Sequence[str], tokens: Tokens, vocabulary: Vocabulary) -> None:
        self.texts = texts
        self.tokens = tokens
        self.vocabulary = vocabulary

    def likeness(self, sentences: Sequence[str]) -> list[Likeness]:
        """Find the training sentence that is nearest to each of `sentences`, which are texts.

        The nearest sentence has the greatest cosine of idf-weighted bags of words. All unknown words count as one word.
        If a training sentence has the same words in the same order, and none of these words is unknown, this training
        sentence is the nearest, with the cosine 1. A sentence that shares no word with the training sentences gets the
        row 0 and the cosine 0.
        """
        tokens = encode_tokens(sentences, self.vocabulary)
        queries = self._bags(tokens)
        nearest = []
        for start in range(0, len(sentences), QUERY_BLOCK):
            cosines = (queries[start : start + QUERY_BLOCK] @ self._transposed).tocsr()
            for first, last in pairwise(cosines.indptr):
                if first == last:
                    nearest.append(Likeness(0, 0.0, False))
                    continue
                best = first + cosines.data[first:last].argmax()
                nearest.append(Likeness(int(cosines.indices[best]), float(cosines.data[best]), False))
        same = [self._row_of_words.get(ids.tobytes()) for ids in tokens]
        return [near if row is None else Likeness(row, 1.0, True) for near, row in zip(nearest, same, strict=True)]

    @cached_property
    def analyze(self) -> Callable[[str], list[str]]:
        """The function that splits a text into the words of the vocabulary, as the vocabulary's settings say
        (lowercase, punctuation)."""
        return make_analyzer(self.vocabulary.settings)

    @cached_property
    def _row_of_words(self) -> dict[bytes, int]:
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
        """Count each of the V terms of the vocabulary in each of the m sentences `tokens`. Return a sparse matrix
        (m, V + 1), whose last column counts unknown words."""
        # The arrays are copied, because `sum_duplicates` would otherwise change the arrays of `tokens` in place.
        parts = (np.ones(len(tokens.ids), np.float32), tokens.ids.copy(), tokens.offsets.copy())
        counts = sparse.csr_array(parts, shape=(len(tokens), len(self.vocabulary.terms) + 1))
        counts.sum_duplicates()
        return counts

    def _bags(self, tokens: Tokens) -> sparse.csr_array:
        counts = self._counts(tokens)
        counts.data *= self._weights[counts.indices]
        return unit_rows(counts)


def pad(tokens: Tokens, before: int, after: int, value: int) -> Tokens:
    """Return new tokens in which every sentence of `tokens` has `before` additional ids `value` at its beginning, and
    `after` additional ids `value` at its end."""
    offsets = offsets_of(tokens.lengths + before + after)
    ids = np.full(offsets[-1], value, np.int32)
    ids[runs(offsets[:-1] + before, tokens.lengths)] = tokens.ids[tokens.offsets[0] : tokens.offsets[-1]]
    return Tokens(ids, offsets)


class Trigram:
    """A trigram language model with interpolated Kneser-Ney smoothing:

        P(w | u v) = max(c(u v w) - d, 0) / c(u v .) + d N1+(u v .) / c(u v .) P(w | v)
        P(w | v) = max(N1+(. v w) - d, 0) / N1+(. v .) + d N1+(v .) / N1+(. v .) P(w)
        P(w) = N1+(. w) / N1+(. .)

    Here c is the count of an n-gram, a dot stands for any word, N1+ is the number of different words that occur at the
    dot, or of different pairs of words at two dots, and d is DISCOUNT. If the history u v was not seen, then P(w | u v)
    is P(w | v), and if v was not seen, then P(w | v) is P(w). A word that was not seen has the probability P(w) of a
    word that was seen after one word only. nltk.lm.KneserNeyInterpolated gives the same probability for each word.
    """

    def __init__(self, tokens: Tokens, boundary: int) -> None:
        """Count the trigrams of the sentences `tokens`, each after two STARTs and before one END. All ids of words,
        including the unknown word, are below `boundary`, which is the id of START and END."""
        self.base = boundary + 1
        self.boundary = boundary
        self.triples = _Counts(self._key(self._grams(tokens)), self.base)
        self.pairs = _Counts(self.triples.keys % self.base**2, self.base)
        words, counts = np.unique(self.pairs.keys % self.base, return_counts=True)
        self.word = np.ones(self.base)
        self.word[words] = counts
        self.word /= counts.sum()

    def log_probability(self, tokens: Tokens) -> np.ndarray:
        """Return the natural logarithm of the probability of each of the m sentences `tokens`, including its END, as
        (m,)."""
        grams = self._grams(tokens)
        lower = self._interpolate(self.pairs, self._key(grams[:, 1:]), self.word[grams[:, 2]])
        logs = np.log(self._interpolate(self.triples, self._key(grams), lower))
        return np.add.reduceat(logs, tokens.offsets[:-1] - tokens.offsets[0] + np.arange(len(tokens)))

    def _interpolate(self, counts: "_Counts", keys: np.ndarray, lower: np.ndarray) -> np.ndarray:
        histories = keys // self.base
        total = _look_up(counts.histories, counts.totals, histories)
        kinds = _look_up(counts.histories, counts.kinds, histories)
        share = np.maximum(_look_up(counts.keys, counts.counts, keys) - DISCOUNT, 0) + DISCOUNT * kinds * lower
        return np.where(total > 0, share / np.maximum(total, 1), lower)

    def _grams(self, tokens: Tokens) -> np.ndarray:
        """Return the trigrams (total, 3) of ids in the sentences `tokens`. There is one trigram for each word and for
        each END, in order. The trigram ends with this word or END, after the two words or STARTs that precede it."""
        padded = pad(tokens, 2, 1, self.boundary)
        return padded.ids.astype(np.int64)[runs(padded.offsets[:-1], tokens.lengths + 1)[:, None] + np.arange(3)]

    def _key(self, grams: np.ndarray) -> np.ndarray:
        return grams @ self.base ** np.arange(grams.shape[1] - 1, -1, -1, dtype=np.int64)


class _Counts:
    """Counts of n-grams. An n-gram is given as a single integer, whose digits in base `base` are the ids of its words.
    The history of an n-gram is the n-gram without its last word.

    `keys` are the different n-grams in ascending order, and `counts` has the count of each of them. `histories` are the
    different histories in ascending order. `totals` has, for each history, the sum of the counts of its n-grams, and
    `kinds` has the number of its different n-grams.
    """

    def __init__(self, grams: np.ndarray, base: int) -> None:
        self.keys, self.counts = np.unique(grams, return_counts=True)
        self.histories, starts, self.kinds = np.unique(self.keys // base, return_index=True, return_counts=True)
        self.totals = np.add.reduceat(self.counts, starts)


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Look up each key of `wanted` in `keys`, which are in ascending order and not empty. Return the entry of `values`
    at the position of the key in `keys`, or 0 if `keys` does not have the key."""
    rows = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[rows] == wanted, values[rows], 0)

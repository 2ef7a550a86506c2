"""A Kneser-Ney trigram model over word ids, vectorised."""

import numpy as np

from pipeline.generate.framing import pad
from pipeline.ragged import runs
from pipeline.text.sequences import Tokens

DISCOUNT = 0.1
"""Subtracted from every count, as in nltk.lm.KneserNeyInterpolated."""


class Trigram:
    """Interpolated Kneser-Ney, with c the count of a gram, N1+ the number of different words at a dot, d DISCOUNT:

        P(w | u v) = max(c(u v w) - d, 0) / c(u v .) + d N1+(u v .) / c(u v .) P(w | v)
        P(w | v) = max(N1+(. v w) - d, 0) / N1+(. v .) + d N1+(v .) / N1+(. v .) P(w)
        P(w) = N1+(. w) / N1+(. .)

    nltk.lm.KneserNeyInterpolated gives the same numbers. An unseen history falls back to the next shorter one; an
    unseen word has the probability of one seen in a single context.
    """

    def __init__(self, tokens: Tokens, boundary: int) -> None:
        """Counts the sentences `tokens`, whose ids are below `boundary`."""
        self.base, self.boundary = boundary + 1, boundary
        self.triples = _Counts(self._key(self._grams(tokens)), self.base)
        self.pairs = _Counts(self.triples.keys % self.base**2, self.base)
        words, counts = np.unique(self.pairs.keys % self.base, return_counts=True)
        self.word = np.ones(self.base)
        self.word[words] = counts
        self.word /= counts.sum()

    def log_probability(self, tokens: Tokens) -> np.ndarray:
        """(m,): the natural logarithm of each sentence's probability, END included."""
        grams = self._grams(tokens)
        lower = self._interpolate(self.pairs, self._key(grams[:, 1:]), self.word[grams[:, 2]])
        logs = np.log(self._interpolate(self.triples, self._key(grams), lower))
        return np.add.reduceat(logs, tokens.offsets[:-1] - tokens.offsets[0] + np.arange(len(tokens)))

    def _interpolate(self, counts: "_Counts", keys: np.ndarray, lower: np.ndarray) -> np.ndarray:
        total, kinds = counts.history(keys // self.base)
        share = np.maximum(_look_up(counts.keys, counts.counts, keys) - DISCOUNT, 0) + DISCOUNT * kinds * lower
        return np.where(total > 0, share / np.maximum(total, 1), lower)

    def _grams(self, tokens: Tokens) -> np.ndarray:
        """(total, 3): every word and END, after the two words before it."""
        padded = pad(tokens, 2, 1, self.boundary)
        return padded.ids.astype(np.int64)[runs(padded.offsets[:-1], tokens.lengths + 1)[:, None] + np.arange(3)]

    def _key(self, grams: np.ndarray) -> np.ndarray:
        return grams @ self.base ** np.arange(grams.shape[1] - 1, -1, -1, dtype=np.int64)


class _Counts:
    """How often each gram occurs; for each history, the sum of the counts and the number of different next words."""

    def __init__(self, grams: np.ndarray, base: int) -> None:
        self.keys, self.counts = np.unique(grams, return_counts=True)
        self.histories, starts, self.kinds = np.unique(self.keys // base, return_index=True, return_counts=True)
        self.totals = np.add.reduceat(self.counts, starts)

    def history(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _look_up(self.histories, self.totals, keys), _look_up(self.histories, self.kinds, keys)


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each of `wanted` among the ascending `keys`; 0 if it is missing."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)

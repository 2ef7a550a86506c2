"""A Kneser-Ney trigram over word numbers, counted and asked in whole arrays."""

import numpy as np

from pipeline.generate.framing import frame
from pipeline.ragged import runs
from pipeline.text.sequences import Tokens

DISCOUNT = 0.1
"""Taken off every count, as in nltk.lm.KneserNeyInterpolated."""


class Trigram:
    """Interpolated Kneser-Ney: with c the count of a gram, N1+ how many different words stand at a dot, d `discount`,

        P(w | u v) = max(c(u v w) - d, 0) / c(u v .) + d N1+(u v .) / c(u v .) P(w | v)
        P(w | v) = max(N1+(. v w) - d, 0) / N1+(. v .) + d N1+(v .) / N1+(. v .) P(w)
        P(w) = N1+(. w) / N1+(. .)

    nltk.lm.KneserNeyInterpolated gives the same numbers. A history that does not occur falls back
    to the next shorter one, and a word never seen has the probability of one seen in a single context.
    """

    def __init__(self, tokens: Tokens, boundary: int, discount: float = DISCOUNT) -> None:
        """Counts the sentences `tokens`, whose words are below `boundary`."""
        self.base, self.boundary, self.discount = boundary + 1, boundary, discount
        grams = self._grams(tokens)
        self.triples = _Counts(*np.unique(self._key(grams), return_counts=True), self.base)
        pairs = self.triples.keys % self.base**2
        self.pairs = _Counts(*np.unique(pairs, return_counts=True), self.base)
        words, counts = np.unique(self.pairs.keys % self.base, return_counts=True)
        self.word = np.ones(self.base)
        self.word[words] = counts
        self.word /= counts.sum()

    def log_probability(self, tokens: Tokens) -> np.ndarray:
        """(m,) natural logarithm of every sentence's probability, its END included."""
        grams = self._grams(tokens)
        lower = self._interpolate(self.pairs, self._key(grams[:, 1:]), self.word[grams[:, 2]])
        logs = np.log(self._interpolate(self.triples, self._key(grams), lower))
        return np.add.reduceat(logs, tokens.offsets[:-1] - tokens.offsets[0] + np.arange(len(tokens)))

    def _interpolate(self, counts: "_Counts", keys: np.ndarray, lower: np.ndarray) -> np.ndarray:
        total, kinds = counts.history(keys // self.base)
        share = np.maximum(counts.of(keys) - self.discount, 0) + self.discount * kinds * lower
        return np.where(total > 0, share / np.maximum(total, 1), lower)

    def _grams(self, tokens: Tokens) -> np.ndarray:
        """(total, 3): of every word and END, the two before it and itself."""
        ids = frame(frame(tokens, self.boundary), self.boundary)
        flat, starts = ids.ids.astype(np.int64), ids.offsets[:-1]
        return flat[runs(starts, tokens.lengths + 1)[:, None] + np.arange(3)]

    def _key(self, grams: np.ndarray) -> np.ndarray:
        return grams @ self.base ** np.arange(grams.shape[1] - 1, -1, -1, dtype=np.int64)


class _Counts:
    """Counts by gram, and by its history: their sum, and how many different words follow."""

    def __init__(self, keys: np.ndarray, counts: np.ndarray, base: int) -> None:
        self.keys, self.counts = keys, counts
        self.histories, starts, self.kinds = np.unique(keys // base, return_index=True, return_counts=True)
        self.totals = np.add.reduceat(counts, starts)

    def of(self, keys: np.ndarray) -> np.ndarray:
        return _look_up(self.keys, self.counts, keys)

    def history(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _look_up(self.histories, self.totals, keys), _look_up(self.histories, self.kinds, keys)


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each of `wanted` among the ascending `keys`; 0 for one that is not there."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)

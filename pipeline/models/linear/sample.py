"""A random sample of rows that come in blocks, in memory of its own size."""

import numpy as np
from scipy import sparse

from pipeline.models.linear.feature_maps import Rows


class ReservoirSample:
    """At most `count` rows of all those added, each as likely as another; by `rng` alone, not by where blocks end."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.count, self._rng = count, rng
        self._keys = np.zeros(0)
        self._kept: Rows | None = None

    def add(self, rows: Rows) -> None:
        """Offer the rows (n, d) of a block, dense or sparse."""
        keys = self._rng.random(rows.shape[0])
        every = np.concatenate([self._keys, keys])
        if self._kept is None:
            self._kept = rows[:0]
        if len(every) > self.count:
            chosen = np.sort(np.argpartition(every, self.count - 1)[: self.count])
        else:
            chosen = np.arange(len(every))
        old, new = chosen[chosen < len(self._keys)], chosen[chosen >= len(self._keys)] - len(self._keys)
        if len(new):
            parts = [self._kept[old], rows[new]]
            self._kept = sparse.vstack(parts, format="csr") if sparse.issparse(rows) else np.concatenate(parts)
            self._keys = every[chosen]

    def rows(self) -> Rows:
        """(at most `count`, d) in the order in which they came; ValueError where no block was added."""
        if self._kept is None:
            raise ValueError("a sample of no block")
        return self._kept

"""The arrays of several shards as one array, of which only what is asked for is read."""

from collections.abc import Sequence

import numpy as np


class Chained:
    """Arrays (n_k, ...), at least one, one after another; `chained[rows]` gathers the `rows` (k,), in any order, as
    `dtype` (None: as the first array has them)."""

    def __init__(self, parts: Sequence[np.ndarray], dtype: type | None = None) -> None:
        self.parts, self.bounds = parts, np.cumsum([0, *map(len, parts)])
        self.shape, self.dtype = (int(self.bounds[-1]), *parts[0].shape[1:]), np.dtype(dtype or parts[0].dtype)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        order = np.argsort(rows, kind="stable") if (np.diff(rows) < 0).any() else None
        rows = rows if order is None else rows[order]
        cuts = np.searchsorted(rows, self.bounds)
        gathered = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for number in np.flatnonzero(np.diff(cuts)):
            own = slice(cuts[number], cuts[number + 1])
            gathered[own if order is None else order[own]] = self.parts[number][rows[own] - self.bounds[number]]
        return gathered

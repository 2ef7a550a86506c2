"""The arrays of several shards as one array, of which only what is asked for is read."""

from collections.abc import Sequence

import numpy as np


class Chained:
    """Arrays (n_k, ...), at least one, one after another; `chained[rows]` gathers the `rows` (k,), in any order, as
    `dtype` (None: as the first array has them)."""

    def __init__(self, parts: Sequence[np.ndarray], dtype: type | None = None) -> None:
        self.parts, self.ends = parts, np.cumsum([len(part) for part in parts])
        self.shape, self.dtype = (int(self.ends[-1]), *parts[0].shape[1:]), np.dtype(dtype or parts[0].dtype)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        numbers = np.searchsorted(self.ends, rows, "right")
        used = np.unique(numbers)
        if len(used) == 1:
            return self._take(used[0], rows).astype(self.dtype, copy=False)
        gathered = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for number in used:
            chosen = numbers == number
            gathered[chosen] = self._take(number, rows[chosen])
        return gathered

    def _take(self, number: int, rows: np.ndarray) -> np.ndarray:
        part = self.parts[number]
        return part[rows - (self.ends[number] - len(part))]

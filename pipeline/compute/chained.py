"""Several arrays as one, concatenated without being read."""

from collections.abc import Sequence

import numpy as np


class ChosenRows:
    """Some rows (n, ...) of an array, not yet read: those at `places` (n,)."""

    def __init__(self, array: "np.ndarray | Chained", places: np.ndarray) -> None:
        self._array = array
        self._places = places
        self.shape = (len(places), *array.shape[1:])

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        return self._array[self._places[rows]]


class Chained:
    """At least one array (n_k, ...), concatenated without being read. `chained[rows]` gathers some of the n rows as
    `dtype` (None: the first array's). `bounds` are the numbers of the first rows of the arrays, and n (None: by the
    lengths of the arrays, for which all are opened)."""

    def __init__(
        self, parts: Sequence[np.ndarray], dtype: type | None = None, bounds: Sequence[int] | np.ndarray | None = None
    ) -> None:
        self.parts, self.bounds = parts, np.asarray(bounds if bounds is not None else np.cumsum([0, *map(len, parts)]))
        self.shape, self.dtype = (int(self.bounds[-1]), *parts[0].shape[1:]), np.dtype(dtype or parts[0].dtype)

    def __getitem__(self, rows: np.ndarray | Sequence[int] | slice) -> np.ndarray:
        """Gather `rows`: whole numbers (k,) from 0 to n - 1 in any order, a mask (n,), or a slice.

        Raises IndexError for any others. A negative number does not count from the end.
        """
        count = self.shape[0]
        rows = np.arange(*rows.indices(count)) if isinstance(rows, slice) else np.asarray(rows)
        if rows.dtype == bool and rows.shape == (count,):
            rows = np.flatnonzero(rows)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise IndexError(f"rows are chosen by whole numbers (k,), a mask ({count},) or a slice, not by {rows!r}")
        rows = rows.astype(np.int64)  # unsigned numbers have no negative differences
        order = np.argsort(rows, kind="stable") if (np.diff(rows) < 0).any() else None
        rows = rows if order is None else rows[order]
        if rows.size and not 0 <= rows[0] <= rows[-1] < count:
            raise IndexError(f"there are {count} rows, from 0; rows {rows[0]} to {rows[-1]} were asked for")
        gathered = np.empty((len(rows), *self.shape[1:]), self.dtype)
        cuts = np.searchsorted(rows, self.bounds)
        for number in np.flatnonzero(np.diff(cuts)).tolist():
            own = slice(cuts[number], cuts[number + 1])
            gathered[own if order is None else order[own]] = self.parts[number][rows[own] - self.bounds[number]]
        return gathered

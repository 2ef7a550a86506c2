"""Arrays whose rows are read on request: several arrays that look like one array, and rows in a temporary file."""

import os
from array import array
from collections.abc import Sequence
from tempfile import TemporaryFile, gettempdir
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from pipeline.errors import JointspaceError

ENTRY = np.dtype([("column", np.int32), ("value", np.float32)])
"""The dtype of a stored entry of a sparse row: the number of its column, and its value."""


class LazyRows(Protocol):
    """The type of an array (n, ...), or of an object that looks like an array (n, ...) but reads its rows on request.

    `lazy[rows]` reads the rows with the numbers `rows` (k,), and returns them as an array (k, ...).
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: np.ndarray, /) -> np.ndarray: ...


class ChosenRows:
    """Some rows of an `array`, which look like an array (n, ...) of these rows.

    Row i of this object is the row `chosen[i]` of `array`. `chosen` (n,) has row numbers. Rows are only read when this
    object is indexed.
    """

    def __init__(self, array: "np.ndarray | Chained", chosen: np.ndarray) -> None:
        self._array = array
        self._chosen = chosen
        self.shape = (len(chosen), *array.shape[1:])

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        return self._array[self._chosen[rows]]


class Chained:
    """One or more arrays `parts` (n_k, ...) that look like one concatenated array (n, ...) without being read.

    `chained[rows]` reads some of the n rows and returns them with the type `dtype`, or the type of the first array if
    `dtype` is None. `bounds` has the number of the first row of each array, followed by n. If `bounds` is None, it is
    computed from the lengths of all arrays. Arrays that are opened on first use are then all opened.
    """

    def __init__(
        self, parts: Sequence[np.ndarray], dtype: type | None = None, bounds: Sequence[int] | np.ndarray | None = None
    ) -> None:
        self.parts = parts
        self.bounds = np.asarray(bounds if bounds is not None else np.cumsum([0, *map(len, parts)]))
        self.shape = (int(self.bounds[-1]), *parts[0].shape[1:])
        self.dtype = np.dtype(dtype or parts[0].dtype)

    def __getitem__(self, rows: np.ndarray | Sequence[int] | slice) -> np.ndarray:
        """Read the rows `rows`: whole numbers (k,) from 0 to n - 1 in any order, a mask (n,) bool, or a slice.

        Returns a new array (k, ...) of the type `dtype`, in the order of `rows`. Raises IndexError for other types and
        shapes of `rows`, and for numbers below 0 or above n - 1.
        """
        count = self.shape[0]
        rows = np.arange(*rows.indices(count)) if isinstance(rows, slice) else np.asarray(rows)
        if rows.dtype == bool and rows.shape == (count,):
            rows = np.flatnonzero(rows)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise IndexError(
                f"rows must be requested by whole numbers of the shape (k,), a bool array of the shape ({count},) or a"
                f" slice, but were requested by {rows!r}."
            )
        rows = rows.astype(np.int64)  # Unsigned numbers would have no negative differences.
        order = np.argsort(rows, kind="stable") if (np.diff(rows) < 0).any() else None
        rows = rows if order is None else rows[order]
        if rows.size and not 0 <= rows[0] <= rows[-1] < count:
            raise IndexError(
                f"there are {count} rows, counted from 0, but rows from {rows[0]} to {rows[-1]} were requested. Request"
                f" rows from 0 to {count - 1}."
            )
        gathered = np.empty((len(rows), *self.shape[1:]), self.dtype)
        cuts = np.searchsorted(rows, self.bounds)
        for number in np.flatnonzero(np.diff(cuts)).tolist():
            own = slice(cuts[number], cuts[number + 1])
            gathered[own if order is None else order[own]] = self.parts[number][rows[own] - self.bounds[number]]
        return gathered


class DiskRows:
    """Rows (n, dim) in a temporary file that is deleted with this object. There are no rows until `append` is called.

    The rows are dense and of the type `dtype`, or sparse float32 rows if `is_sparse` is true.

    Only the position of each row, 8 bytes, is in memory. A memory map is not used, because its pages would stay in
    memory. `rows[numbers]` reads the rows with the numbers (k,) as (k, dim), or a single row as (1, dim). It returns an
    array if the rows are dense, and a csr_array if they are sparse.
    """

    def __init__(self, dim: int, is_sparse: bool = False, dtype: DTypeLike = np.float32) -> None:
        self._dim = dim
        self._is_sparse = is_sparse
        self._type = ENTRY if is_sparse else np.dtype(dtype)
        self._file = TemporaryFile(prefix="jointspace-rows-")  # noqa: SIM115  The file is open as long as this object.
        self._starts = array("q", [0])

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._starts) - 1, self._dim

    def append(self, rows: np.ndarray | sparse.csr_array) -> None:
        """Append `rows` (k, dim), which must be a csr_array if this object has sparse rows, and else an array.

        Raises JointspaceError if they cannot be written, for example because the disk is full.
        """
        if isinstance(rows, np.ndarray):
            counts = np.full(len(rows), self._dim)
            entries = rows.astype(self._type)
        else:
            counts = np.diff(rows.indptr)
            entries = np.rec.fromarrays([rows.indices, rows.data], self._type).astype(self._type)
        try:
            self._file.write(entries.tobytes())
            self._file.flush()
        except OSError as error:
            raise JointspaceError(
                f"A temporary file in the folder {gettempdir()} cannot be written ({error.strerror}). Delete files on"
                " its disk, or set TMPDIR to a folder on another disk. Then run the same command again."
            ) from error
        self._starts.extend((self._starts[-1] + np.cumsum(counts, dtype=np.int64)).tolist())

    def __getitem__(self, numbers: np.ndarray | int) -> Any:
        numbers = np.atleast_1d(numbers)
        starts = np.frombuffer(self._starts, np.int64)
        # Consecutive rows are read at once. `is_first` says which rows begin a run of consecutive rows.
        is_first = np.diff(numbers, prepend=-2) != 1
        firsts = starts[numbers[is_first]] * self._type.itemsize
        stops = starts[numbers[np.roll(is_first, -1)] + 1] * self._type.itemsize
        spans = zip(firsts.tolist(), (stops - firsts).tolist(), strict=True)
        data = b"".join(os.pread(self._file.fileno(), length, offset) for offset, length in spans)
        entries: np.ndarray = np.frombuffer(data, self._type)
        if not self._is_sparse:
            return entries.reshape(len(numbers), self._dim)
        ends = np.cumsum([0, *(starts[numbers + 1] - starts[numbers]).tolist()])
        return sparse.csr_array((entries["value"].copy(), entries["column"].copy(), ends), (len(numbers), self._dim))

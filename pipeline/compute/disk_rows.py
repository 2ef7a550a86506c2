"""Rows of numbers in a temporary file, so that any of them can be read without holding all in memory."""

import os
from array import array
from tempfile import TemporaryFile, gettempdir
from typing import Any

import numpy as np
from scipy import sparse

from pipeline.errors import JointspaceError

ENTRY = np.dtype([("column", np.int32), ("value", np.float32)])
"""An entry of a sparse row."""


class DiskRows:
    """Rows (n, dim) of float32, dense or sparse, in a file that vanishes with this object. Only the place of each row,
    8 bytes, is in memory, where the pages of a memory map would stay. `rows[numbers]` reads the rows `numbers` (k,), or
    one row as (1, dim), as an array or as a csr_array."""

    def __init__(self, dim: int, is_sparse: bool = False) -> None:
        self._dim, self._type = dim, ENTRY if is_sparse else np.dtype(np.float32)
        self._file = TemporaryFile(prefix="jointspace-rows-")  # noqa: SIM115 (open as long as this object)
        self._starts = array("q", [0])

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._starts) - 1, self._dim

    def append(self, rows: Any) -> None:
        """Append `rows` (k, dim). Raises JointspaceError if the disk is full."""
        counts, entries = np.full(rows.shape[0], self._dim), rows
        if self._type == ENTRY:
            counts, entries = np.diff(rows.indptr), np.rec.fromarrays([rows.indices, rows.data], ENTRY)
        try:
            self._file.write(entries.astype(self._type).tobytes())
            self._file.flush()
        except OSError as error:
            where = f"a temporary file in {gettempdir()} ({error.strerror})"
            raise JointspaceError(f"cannot write {where}; make room there, or set TMPDIR to another folder") from error
        self._starts.extend((self._starts[-1] + np.cumsum(counts, dtype=np.int64)).tolist())

    def __getitem__(self, numbers: np.ndarray | int) -> Any:
        numbers = np.atleast_1d(numbers)
        starts, size = np.frombuffer(self._starts, np.int64), self._type.itemsize
        firsts, counts = starts[numbers], starts[numbers + 1] - starts[numbers]
        places = zip((firsts * size).tolist(), (counts * size).tolist(), strict=True)
        entries = np.frombuffer(b"".join(os.pread(self._file.fileno(), n, at) for at, n in places), self._type)
        if self._type != ENTRY:
            return entries.reshape(len(numbers), self._dim)
        ends = np.cumsum([0, *counts.tolist()])
        return sparse.csr_array((entries["value"].copy(), entries["column"].copy(), ends), (len(numbers), self._dim))

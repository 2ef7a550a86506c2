"""Photographs in a column of a Parquet file, as the Hugging Face hub has them, read row by row in place."""

import os
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import InputError

USUAL = ("image", "img", "photo", "photograph", "picture", "jpg", "jpeg", "png", "webp", "image_bytes")
"""Names of the column of photographs, in lower case."""
ROWS = 32
"""That are in memory together."""


def photograph_column(schema: pa.Schema) -> str | None:
    """The column that holds encoded photographs: structs with `bytes` (and `path`), or bytes in a column with one of
    the names in USUAL. Of several the first of these names, else the first. None if there is none."""
    held = {field.name: field.type for field in schema if _holds_bytes(field.type) or _is_usual_binary(field)}
    named = {name.lower(): name for name in reversed(held)}
    return next((named[name] for name in USUAL if name in named), next(iter(held), None))


def _holds_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and any(field.name == "bytes" and _is_binary(field.type) for field in kind)


def _is_usual_binary(field: pa.Field) -> bool:
    return _is_binary(field.type) and field.name.lower() in USUAL


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


class ParquetPhotographs:
    """Reads the photographs of one Parquet file after another. Those of rows that follow each other are decoded once;
    any other row costs the rows before it in its row group."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: tuple[int, ...] = ()
        self._column = ""
        self._struct = False
        self._file: pq.ParquetFile | None = None
        self._ends = np.zeros(0, int)  # the rows up to and with each row group
        self._group = -1
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._first = 0
        self._values: pa.Array = pa.nulls(0)

    def read(self, descriptor: int, row: int) -> bytes:
        """The photograph in the `row` (from 0) of an open file. Raises InputError where it has none."""
        with self._lock:
            try:
                status = os.fstat(descriptor)
                state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
                if state != self._state:
                    self._open(os.dup(descriptor))
                    self._state = state
                value = self._find(row)
            except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, LookupError) as error:
                self._state = ()
                raise InputError(f"unreadable: row {row + 1} of the Parquet file: {error}") from error
        if not value:
            raise InputError(f"missing: row {row + 1} has no bytes of a photo in its column {self._column}")
        return value

    def _open(self, descriptor: int) -> None:
        file = os.fdopen(descriptor, "rb")
        schema = pq.read_schema(file)
        self._column = photograph_column(schema) or ""
        self._struct = bool(self._column) and pa.types.is_struct(schema.field(self._column).type)
        if not self._column:
            raise ValueError("no column of photos")
        self._file = pq.ParquetFile(file, read_dictionary=[self._leaf])  # a value that is repeated is held once
        groups = range(self._file.metadata.num_row_groups)
        self._ends = np.cumsum([self._file.metadata.row_group(number).num_rows for number in groups], dtype=int)
        self._group, self._values = -1, pa.nulls(0)

    @property
    def _leaf(self) -> str:
        return f"{self._column}.bytes" if self._struct else self._column

    def _find(self, row: int) -> bytes | None:
        if not 0 <= row < (self._ends[-1] if len(self._ends) else 0):
            raise LookupError(f"there are {self._ends[-1] if len(self._ends) else 0} rows")
        group = int(np.searchsorted(self._ends, row, "right"))
        if group != self._group or row < self._first:
            self._group = group
            self._batches = self._file.iter_batches(ROWS, row_groups=[group], columns=[self._leaf])
            self._first, self._values = int(self._ends[group - 1]) if group else 0, pa.nulls(0)
        while row >= self._first + len(self._values):
            self._first += len(self._values)
            self._values = next(self._batches).column(0)
        value = self._values[row - self._first].as_py()
        return value["bytes"] if self._struct and value is not None else value

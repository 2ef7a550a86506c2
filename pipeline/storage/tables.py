"""Parquet tables: names and text, written in memory, published atomically, and unpacked within bounds."""

import bisect
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import IntegrityError, UsageError
from pipeline.foreign.parquet import dictionary_bytes, plain_type, unpacked_bytes
from pipeline.storage.commit import About, Commit, publish, read_verified
from pipeline.storage.files import REMEDY
from pipeline.storage.json_files import T

Row = Mapping[str, Any]
"""A row of a table as Arrow gives it. The user's own columns have values of many types."""
SHARD = "bundle"
"""The column of an index with several shards that says which shard has a row, from 0."""
CORNERS = ("x1", "y1", "x2", "y2")
"""The columns of a box."""
MOST_UNPACKED, SPARE_BYTES = 100, 1 << 27  # a table may unpack to MOST_UNPACKED times its size plus SPARE_BYTES
GROUP_ROWS = 8192  # rows that are unpacked together
MOST_DIGITS = 18  # of a foreign number: as many as always fit into 64 bits
FIRST_DAY = np.datetime64("0001-01-01")
LAST_SECOND = np.datetime64("9999-12-31T23:59:59")
"""The ends of Python's calendar."""


def write_table(path: Path, kind: str, table: pa.Table, **about: Unpack[About]) -> Commit:
    """Publish `table` as one Parquet file; `about` has the `provenance` and `details` of `publish`."""
    return publish(path, to_parquet(table), kind=kind, rows=table.num_rows, **about)


def to_parquet(table: pa.Table) -> memoryview:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", row_group_size=GROUP_ROWS)
    return buffer.getbuffer()


def vectors_column(vectors: np.ndarray) -> pa.Array:
    """`vectors` (n, c) as the column `vector`."""
    flat = pa.array(np.ascontiguousarray(vectors, np.float32).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def read_table(path: Path, kind: str) -> tuple[pa.Table, Commit]:
    """A published table, and its commit. Raises IntegrityError as PackedTable does."""
    data, commit = read_verified(path, kind)
    return PackedTable(data, path).unpack(), commit


def require_columns(path: Path, found: pa.Schema, needed: pa.Schema, remedy: str = REMEDY) -> None:
    """Raises IntegrityError if the table at `path` lacks a column, or has it with another type."""
    for field in needed:
        own = found.field(field.name) if field.name in found.names else None
        if own is None or own.type != field.type:
            held = "" if own is None else f" (it is {own.type})"
            raise IntegrityError(f"{path} has no column {field.name} of type {field.type}{held}; {remedy}")


class PackedTable:
    """The table in the bytes of the Parquet file `path`, unpacked on request; `check(rows, first)` sees all `rows` that
    are read before anybody else, the first of which is row `first`.

    Raises IntegrityError if the bytes are not such a table, or would unpack to far more than their number.
    """

    def __init__(
        self, data: bytes | memoryview, path: Path, check: Callable[[pa.Table, int], None] = lambda rows, first: None
    ) -> None:
        self.path = path
        self._check = check
        self._most = SPARE_BYTES + MOST_UNPACKED * len(data)
        with self._refusing():
            plain = pq.ParquetFile(pa.BufferReader(data))
            about, schema = plain.metadata, plain.schema
            columns = [schema.column(number) for number in range(about.num_columns)]
            texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
            # Texts as dictionaries, so that one that stands in many rows is in memory once until it is measured.
            self._file = pq.ParquetFile(pa.BufferReader(data), metadata=about, read_dictionary=texts)
            self.schema = plain.schema_arrow
            self.num_rows: int = about.num_rows
            sizes = [about.row_group(number).num_rows for number in range(about.num_row_groups)]
            unpacked = unpacked_bytes(about)
        self._require_modest(unpacked)
        for number, field in enumerate(self.schema):
            if (kind := plain_type(field.type)) is None:
                raise IntegrityError(
                    f"{path}: the column {field.name} has the type {field.type}, which no answer can show; write its"
                    " values as numbers, text, truth values or dates, or leave the column out"
                )
            self.schema = self.schema.set(number, field.with_type(kind))
        if max(sizes, default=0) > GROUP_ROWS or min(sizes, default=0) < 0 or sum(sizes) != self.num_rows:
            raise IntegrityError(f"{path} was not written by this project; {REMEDY}")
        self._ends = list(itertools.accumulate(sizes))

    def unpack(self) -> pa.Table:
        return pa.concat_tables([self.schema.empty_table(), *self.groups()])

    def groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """All rows in order, of all columns or some, a few thousand at a time."""
        unpacked = 0
        for number in range(len(self._ends)):
            group = self._read_group(number, columns, unpacked)
            unpacked += group.nbytes
            yield group

    def find(self, column: str, values: np.ndarray) -> np.ndarray:
        """(k,) the rows whose `column` has one of the whole numbers `values`; groups whose least and greatest value
        exclude them all are not read."""
        values, place, found = np.unique(values), self.schema.get_field_index(column), [np.empty(0, np.int64)]
        for number, end in enumerate(self._ends if len(values) else ()):
            statistics = self._file.metadata.row_group(number).column(place).statistics
            bounds = (
                (statistics.min, statistics.max)
                if statistics is not None and statistics.has_min_max
                else (values[0], values[-1])
            )
            if np.diff(np.searchsorted(values, bounds, "left")) or bounds[1] in values:
                group = self._read_group(number, [column])[column].to_numpy()
                found.append(np.flatnonzero(np.isin(group, values)) + end - len(group))
        return np.concatenate(found)

    def bounds(self, column: str) -> tuple[int, int]:
        """The least and the greatest of the whole numbers in a column without nulls; 0 and -1 where there is no row."""
        ends, place = [], self.schema.get_field_index(column)
        for number in range(len(self._ends)):
            about = self._file.metadata.row_group(number)
            statistics = about.column(place).statistics
            if statistics is not None and statistics.has_min_max:
                ends += [statistics.min, statistics.max]
            elif about.num_rows:
                numbers = self._read_group(number, [column])[column].to_numpy()
                ends += [int(numbers.min()), int(numbers.max())]
        return min(ends, default=0), max(ends, default=-1)

    def records(self, rows: Iterable[int]) -> list[dict[str, Any]]:
        """Some rows, in the given order; each group of rows is read once."""
        return gather(rows, self._ends, lambda number, rows: self._read_group(number).take(rows).to_pylist())

    def _read_group(self, number: int, columns: Sequence[str] | None = None, before: int = 0) -> pa.Table:
        """The rows of a group, which with the bytes `before` may not be more than the whole table may unpack to."""
        about = self._file.metadata.row_group(number)
        if not about.num_rows:  # which has no pages
            return pa.schema([self.schema.field(name) for name in columns or self.schema.names]).empty_table()
        with self._refusing():
            # Arrow's threads abort some processes that end while they are still starting.
            group = self._file.read_row_group(number, columns, use_threads=False)
            group.validate(full=True)
            chunks = (chunk for column in group.columns for chunk in column.chunks)
            self._require_modest(before + sum(map(dictionary_bytes, chunks)))
            self._require_calendar(group, self._ends[number] - group.num_rows)
            group = _spell_out(group, pa.schema([self.schema.field(name) for name in group.column_names]))
        self._check(group, self._ends[number] - group.num_rows)
        return group

    def _require_calendar(self, group: pa.Table, first: int) -> None:
        """Raises IntegrityError naming a row of `group` whose date Python cannot hold; `first` is its first row."""
        for name, column in zip(group.column_names, group.columns, strict=True):
            kind = column.type
            if pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.unit != "ns"):  # which end in 2262
                dates = column.to_numpy()
                if len(wrong := np.flatnonzero((dates < FIRST_DAY) | (dates > LAST_SECOND))):
                    row = f"{self.path} row {first + wrong[0]}"
                    raise IntegrityError(f"{row}: its {name} is not in the years 1 to 9999")

    def _require_modest(self, unpacked: int) -> None:
        if unpacked > self._most:
            raise IntegrityError(f"{self.path} would unpack to {unpacked:,} bytes; {REMEDY}")

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, MemoryError, ValueError, IndexError) as error:
            raise IntegrityError(f"{self.path} is not a readable Parquet file ({error}); {REMEDY}") from error


class ChainedTables:
    """Several PackedTables one after another, with the interface of one.

    `shifts[i]` (column -> number) is added to the ids of `tables[i]`, so that no two rows have the same id, and the
    column SHARD says which table has the row. A column that a table lacks is null there. Raises UsageError for a column
    of types that cannot be reconciled.
    """

    def __init__(self, tables: Sequence[PackedTable], shifts: Sequence[Mapping[str, int]]) -> None:
        self.tables = tables
        self._shifts = shifts
        self._ends = list(itertools.accumulate(table.num_rows for table in tables))
        schemas = [pa.schema([field for field in table.schema if field.name != SHARD]) for table in tables]
        try:
            schema = pa.unify_schemas(schemas, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            names = " and ".join(str(table.path) for table in tables)
            raise UsageError(f"{names} have a column of different types ({error}); search them one by one") from error
        self.schema: pa.Schema = schema.append(pa.field(SHARD, pa.int64()))

    @property
    def num_rows(self) -> int:
        return self._ends[-1]

    @property
    def path(self) -> Path:
        return self.tables[0].path

    def unpack(self) -> pa.Table:
        return pa.concat_tables([self.schema.empty_table(), *self.groups()])

    def groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield all rows in order, of all columns or some, a few thousand at a time."""
        schema = pa.schema([self.schema.field(name) for name in columns or self.schema.names])
        for number, table in enumerate(self.tables):
            stored = [name for name in schema.names if name in table.schema.names and name != SHARD]
            for group in table.groups(stored or table.schema.names[:1]):
                for name, shift in self._shifts[number].items():
                    if shift and name in group.column_names:
                        ids = pa.array(group[name].to_numpy() + shift)
                        group = group.set_column(group.column_names.index(name), name, ids)
                if SHARD in schema.names:
                    group = group.append_column(SHARD, pa.array(np.full(group.num_rows, number)))
                yield _with_columns(group, schema)

    def records(self, rows: Iterable[int]) -> list[dict[str, Any]]:
        """Return some rows in the given order. Each table is read once."""

        def read(number: int, rows: list[int]) -> Iterator[dict[str, Any]]:
            for record in self.tables[number].records(rows):
                ids = {name: record[name] + shift for name, shift in self._shifts[number].items()}
                yield {**dict.fromkeys(self.schema.names), **record, **ids, SHARD: number}

        return gather(rows, self._ends, read)

    def find(self, column: str, values: np.ndarray) -> np.ndarray:
        """Return the rows (k,) whose `column` has one of the whole numbers `values`."""
        rows = [
            table.find(column, values - shifts.get(column, 0)) + end - table.num_rows
            for table, shifts, end in zip(self.tables, self._shifts, self._ends, strict=True)
        ]
        return np.concatenate(rows)


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return `table` with the columns of `schema` alone, in their order and types. A missing column is null."""
    columns = {field.name: pa.nulls(table.num_rows, field.type) for field in schema}
    columns |= {name: table[name].cast(schema.field(name).type) for name in table.column_names if name in columns}
    return pa.table(columns, schema=schema)


RowTable = PackedTable | ChainedTables
"""The table of an index with one shard, or with several."""


def gather(rows: Iterable[int], ends: Sequence[int], read: Callable[[int, list[int]], Iterable[T]]) -> list[T]:
    """Some rows, in the given order, of parts that end before the rows `ends`: `read(number, rows)` gives those of one
    part, and is called once for each that has some."""
    rows = list(map(int, rows))
    records: dict[int, T] = {}
    for number, grouped in itertools.groupby(sorted(set(rows)), partial(bisect.bisect_right, ends)):
        chosen, first = list(grouped), ends[number - 1] if number else 0
        records |= zip(chosen, read(number, [row - first for row in chosen]), strict=True)
    return [copy(records[row]) for row in rows]


def _spell_out(group: pa.Table, schema: pa.Schema) -> pa.Table:
    """`group` with the types of `schema`, by which texts are no dictionaries; `Table.cast` would import
    pyarrow.compute, which takes longer than a search."""
    columns = []
    for field, column in zip(schema, group.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            column = pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks], column.type.value_type)
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.string())  # directly, 19.90 would not become 19.9
        exact = not pa.types.is_timestamp(column.type)  # of nanoseconds, whole microseconds are kept
        columns.append(column if column.type == field.type else column.cast(field.type, safe=exact))
    return pa.Table.from_arrays(columns, schema=schema)

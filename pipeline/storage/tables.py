"""Parquet tables of names and texts, which are published atomically and unpacked within a limit on memory."""

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
"""A row of a table as Arrow returns it. The user's own columns have values of many types."""
SHARD = "bundle"
"""The column, in the table of an index with several shards, that contains the number of the row's shard, from 0."""
CORNERS = ("x1", "y1", "x2", "y2")
"""The columns of a box: its left, upper, right and lower edge in pixels."""
MAX_UNPACKED_RATIO = 100
"""Largest size of an unpacked table, as a multiple of the size of its file. SPARE_BYTES are allowed in addition. A
larger table is refused."""
SPARE_BYTES = 1 << 27
GROUP_ROWS = 8192
"""Largest number of rows of a row group. A row group is the part of a Parquet file that is unpacked at once. A file
with a larger group is refused."""
MAX_DIGITS = 18
"""Largest number of digits of an id from a user that is read as a number. Such a number always fits into 64 bits."""
FIRST_DAY = np.datetime64("0001-01-01")
"""The first day of Python's calendar."""
LAST_SECOND = np.datetime64("9999-12-31T23:59:59")
"""The last second of Python's calendar."""


def write_table(path: Path, kind: str, table: pa.Table, **about: Unpack[About]) -> Commit:
    """Write `table` as the Parquet file `path` with its commit record, which notes the `kind`. `about` may have the
    provenance, the details, and the batch that publishes the file. Raises JointspaceError if the file cannot be
    written."""
    return publish(path, to_parquet(table), kind=kind, rows=table.num_rows, **about)


def to_parquet(table: pa.Table) -> memoryview:
    """Return the content of a Parquet file with this table."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", row_group_size=GROUP_ROWS)
    return buffer.getbuffer()


def vectors_column(vectors: np.ndarray) -> pa.Array:
    """Convert `vectors` (n, c) to a column of float32 lists of the length c."""
    flat = pa.array(np.ascontiguousarray(vectors, np.float32).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def read_table(path: Path, kind: str) -> tuple[pa.Table, Commit]:
    """Read the table in the Parquet file `path`, and its commit record. Raises IntegrityError if the table is missing,
    damaged, or not of this `kind`."""
    data, commit = read_verified(path, kind)
    return PackedTable(data, path).unpack(), commit


def require_columns(path: Path, found: pa.Schema, needed: pa.Schema, remedy: str = REMEDY) -> None:
    """Raise IntegrityError if a table lacks a needed column, or has it with another type.

    `found` is the schema of the table in the file `path`, and `needed` has the needed columns. The message ends with
    the `remedy`.
    """
    for field in needed:
        own = found.field(field.name) if field.name in found.names else None
        if own is None or own.type != field.type:
            other = "" if own is None else f" (its type is {own.type})"
            raise IntegrityError(f"{path} has no column {field.name} of the type {field.type}{other}. {remedy}")


class PackedTable:
    """The table in a Parquet file, whose rows are unpacked on request.

    `data` is the content of the file `path`. `check(rows, first)` is called for rows before they are returned. `rows`
    is a table of these rows, and `first` is the number of its first row in the file. Raises IntegrityError if the file
    is not a Parquet file, has larger row groups than jointspace writes, has a column of other values than numbers,
    texts, truth values and dates, or would unpack to more bytes than MAX_UNPACKED_RATIO allows.
    """

    def __init__(
        self, data: bytes | memoryview, path: Path, check: Callable[[pa.Table, int], None] = lambda rows, first: None
    ) -> None:
        self.path = path
        self._check = check
        self._most = SPARE_BYTES + MAX_UNPACKED_RATIO * len(data)
        with self._refusing():
            plain = pq.ParquetFile(pa.BufferReader(data))
            about = plain.metadata
            schema = plain.schema
            columns = [schema.column(number) for number in range(about.num_columns)]
            texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
            # Texts are read as dictionaries. A text that many rows share is in memory only once until the size of the
            # unpacked table has been checked.
            self._file = pq.ParquetFile(pa.BufferReader(data), metadata=about, read_dictionary=texts)
            self.schema = plain.schema_arrow
            self.num_rows: int = about.num_rows
            sizes = [about.row_group(number).num_rows for number in range(about.num_row_groups)]
            unpacked = unpacked_bytes(about)
        self._require_modest(unpacked)
        for number, field in enumerate(self.schema):
            if (kind := plain_type(field.type)) is None:
                raise IntegrityError(
                    f"{path}: the column {field.name} has the type {field.type}, which is not supported. Write its"
                    " values as numbers, text, truth values or dates, or leave the column out."
                )
            self.schema = self.schema.set(number, field.with_type(kind))
        if max(sizes, default=0) > GROUP_ROWS or min(sizes, default=0) < 0 or sum(sizes) != self.num_rows:
            raise IntegrityError(
                f"{path} was not written by jointspace: a row group may have at most {GROUP_ROWS} rows, and all groups"
                f" together must have the {self.num_rows} rows of the table. {REMEDY}"
            )
        self._ends = list(itertools.accumulate(sizes))

    def unpack(self) -> pa.Table:
        """Read the whole table. Raises IntegrityError if a row group is damaged, or if the table is too large."""
        return pa.concat_tables([self.schema.empty_table(), *self.groups()])

    def groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield all rows in order, as tables of at most GROUP_ROWS rows with the given columns, by default with all
        columns. Raises IntegrityError if a row group is damaged or too large."""
        unpacked = 0
        for number in range(len(self._ends)):
            group = self._read_group(number, columns, unpacked)
            unpacked += group.nbytes
            yield group

    def find(self, column: str, values: np.ndarray) -> np.ndarray:
        """Return the row numbers (k,) at which `column` has one of the integers `values`, in ascending order.

        A row group is not read if its minimum and maximum exclude all of the values.
        """
        values = np.unique(values)
        position = self.schema.get_field_index(column)
        found = [np.empty(0, np.int64)]
        for number, end in enumerate(self._ends if len(values) else ()):
            statistics = self._file.metadata.row_group(number).column(position).statistics
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
        """Return the minimum and the maximum of a column of integers without nulls, or 0 and -1 for no rows."""
        ends = []
        position = self.schema.get_field_index(column)
        for number in range(len(self._ends)):
            about = self._file.metadata.row_group(number)
            statistics = about.column(position).statistics
            if statistics is not None and statistics.has_min_max:
                ends += [statistics.min, statistics.max]
            elif about.num_rows:
                numbers = self._read_group(number, [column])[column].to_numpy()
                ends += [int(numbers.min()), int(numbers.max())]
        return min(ends, default=0), max(ends, default=-1)

    def records(self, rows: Iterable[int]) -> list[dict[str, Any]]:
        """Return the rows with these numbers, in the given order, as dictionaries. A row group is read at most once."""
        return gather(rows, self._ends, lambda number, rows: self._read_group(number).take(rows).to_pylist())

    def _read_group(self, number: int, columns: Sequence[str] | None = None, before: int = 0) -> pa.Table:
        """Read the row group `number` and check its rows. Return the given columns, by default all columns.

        `before` is the number of unpacked bytes of the groups that were read before. Raises IntegrityError if these
        bytes and the bytes of this group together exceed the limit of the whole table.
        """
        about = self._file.metadata.row_group(number)
        if not about.num_rows:  # A group without rows has no pages to read.
            return pa.schema([self.schema.field(name) for name in columns or self.schema.names]).empty_table()
        with self._refusing():
            # Arrow's threads are not used, because a process that ends while they are still starting may abort.
            group = self._file.read_row_group(number, columns, use_threads=False)
            group.validate(full=True)
            chunks = (chunk for column in group.columns for chunk in column.chunks)
            self._require_modest(before + sum(map(dictionary_bytes, chunks)))
            self._require_calendar(group, self._ends[number] - group.num_rows)
            group = _spell_out(group, pa.schema([self.schema.field(name) for name in group.column_names]))
        self._check(group, self._ends[number] - group.num_rows)
        return group

    def _require_calendar(self, group: pa.Table, first: int) -> None:
        """Raise IntegrityError that names a row whose date is not in Python's calendar.

        `first` is the number of the first row of `group`. Columns of nanoseconds need no check, because 64 bits of
        nanoseconds reach only from 1677 to 2262.
        """
        for name, column in zip(group.column_names, group.columns, strict=True):
            kind = column.type
            if pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.unit != "ns"):
                dates = column.to_numpy()
                if len(wrong := np.flatnonzero((dates < FIRST_DAY) | (dates > LAST_SECOND))):
                    row = f"{self.path} row {first + wrong[0]}"
                    raise IntegrityError(
                        f"{row}: the time in the column {name} is not in the years 1 to 9999. {REMEDY}"
                    )

    def _require_modest(self, unpacked: int) -> None:
        if unpacked > self._most:
            raise IntegrityError(
                f"{self.path} would unpack to {unpacked:,} bytes, but at most {self._most:,} are allowed. {REMEDY}"
            )

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, MemoryError, ValueError, IndexError) as error:
            raise IntegrityError(f"{self.path} is not a readable Parquet file ({error}). {REMEDY}") from error


class ChainedTables:
    """Several PackedTables one after another, at least one. All methods of a PackedTable exist here except `bounds`.

    `shifts[i]` maps each column of ids to the number that is added to the ids of `tables[i]`, so that no two rows have
    the same id. The additional column SHARD contains the number of the row's table. A column that a table lacks is null
    in the rows of this table. Raises UsageError if a column has types in two tables that cannot be converted to a
    common type.
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
            raise UsageError(
                f"{names} have a column of the same name with different types ({error}). Search one index at a time, or"
                " give the column another name in one of the collections."
            ) from error
        self.schema: pa.Schema = schema.append(pa.field(SHARD, pa.int64()))

    @property
    def num_rows(self) -> int:
        return self._ends[-1]

    def unpack(self) -> pa.Table:
        """Read the rows of all tables, and return them as one Arrow table."""
        return pa.concat_tables([self.schema.empty_table(), *self.groups()])

    def groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield all rows in order, as tables of at most GROUP_ROWS rows with the given columns, by default with all
        columns. Columns that the table of a shard lacks are null."""
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
        """Return the rows with these numbers in the given order, with the shifted ids, the column SHARD, and None for a
        column that the row's table lacks. Each row group is read at most once."""

        def read(number: int, rows: list[int]) -> Iterator[dict[str, Any]]:
            for record in self.tables[number].records(rows):
                ids = {name: record[name] + shift for name, shift in self._shifts[number].items()}
                yield {**dict.fromkeys(self.schema.names), **record, **ids, SHARD: number}

        return gather(rows, self._ends, read)

    def find(self, column: str, values: np.ndarray) -> np.ndarray:
        """Return the row numbers (k,) at which `column` has one of the integers `values`, in ascending order.

        If `column` is a column of ids, `values` are the ids after the shift.
        """
        rows = [
            table.find(column, values - shifts.get(column, 0)) + end - table.num_rows
            for table, shifts, end in zip(self.tables, self._shifts, self._ends, strict=True)
        ]
        return np.concatenate(rows)


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of `schema` from `table`, with the order and the types of `schema`. A column that `table`
    lacks is null."""
    columns = {field.name: pa.nulls(table.num_rows, field.type) for field in schema}
    columns |= {name: table[name].cast(schema.field(name).type) for name in table.column_names if name in columns}
    return pa.table(columns, schema=schema)


RowTable = PackedTable | ChainedTables
"""The table of an index with one shard, or with several."""


def gather(rows: Iterable[int], ends: Sequence[int], read: Callable[[int, list[int]], Iterable[T]]) -> list[T]:
    """Return the rows with the numbers `rows` of a table that is divided into parts, in the given order.

    Part 0 has the rows 0 to `ends[0]` - 1, and any other part i has the rows `ends[i - 1]` to `ends[i]` - 1.
    `read(i, own)` returns the rows `own` of part i. The numbers in `own` ascend, and 0 is the first row of the part.
    `read` is called at most once for each part.
    """
    rows = list(map(int, rows))
    records: dict[int, T] = {}
    for number, grouped in itertools.groupby(sorted(set(rows)), partial(bisect.bisect_right, ends)):
        chosen = list(grouped)
        first = ends[number - 1] if number else 0
        records |= zip(chosen, read(number, [row - first for row in chosen]), strict=True)
    return [copy(records[row]) for row in rows]


def _spell_out(group: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert `group` to the types of `schema`: dictionaries to texts, and decimals via text to floats.

    `Table.cast` is not used, because it imports pyarrow.compute, which takes longer than a search.
    """
    columns = []
    for field, column in zip(schema, group.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            column = pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks], column.type.value_type)
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.string())  # A direct cast would not convert 19.90 to 19.9.
        exact = not pa.types.is_timestamp(column.type)  # Nanoseconds are cut to microseconds.
        columns.append(column if column.type == field.type else column.cast(field.type, safe=exact))
    return pa.Table.from_arrays(columns, schema=schema)

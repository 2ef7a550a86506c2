"""Tables of any size in memory that does not grow with them: DuckDB, within this process, which sorts and joins them on
the disk as soon as they need more than MEMORY."""

import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import runtime

MEMORY = "128MB"
THREADS = 4
"""At most: each has buffers of its own."""
BATCH = 1 << 15
"""Rows that are added together."""
WINDOW = 1 << 15
"""Numbers of rows that `windows` reads together."""
PORTION = 1 << 24
"""Bytes that are sorted at once, in memory. DuckDB would sort more on the disk, but sometimes fails to: with MEMORY at
68 MB of short keys, and at 1.3 GB of sentences; not below 54 MB."""
PORTIONS = 16
"""Into as many a table is divided at most, with a pass over it for each, and these again."""
BYTES = {"VARCHAR": "strlen", "BLOB": "octet_length"}
"""What counts those of a value, by its type; others have eight at most."""
NUMBERS = {"seq", "owner"}
"""Columns by which tables have windows."""
TEMPORARY = re.compile(r"duckdb_temp_[\w-]+(\.\w+)?")
FULL = ("No space left", "Could not write", "max_temp_directory_size", "failed to offload")
"""What DuckDB says where the disk is full."""


class FullDiskError(OSError):
    """The disk has no room for a table."""


class DiskTables:
    """Tables with these `schemas`, by name, to be filled row by row, and others made of them by SQL. What does not fit
    into memory lies in the `folder`, as files that TEMPORARY matches; they are gone when this is closed.

    Raises FullDiskError where the folder's disk is full. The rows of no query are in order without ORDER BY.
    """

    def __init__(self, folder: Path, schemas: Mapping[str, pa.Schema]) -> None:
        self._folder, self.schemas = folder, dict(schemas)
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        self._last: dict[str, dict[str, int]] = {}
        """Of each table that has rows, and so is known to DuckDB, the largest values of its columns in NUMBERS."""
        settings = {
            "threads": min(runtime.threads(), THREADS),
            "memory_limit": MEMORY,
            "temp_directory": str(folder),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        }
        self._connection = duckdb.connect(":memory:", config=settings)
        self._connection.execute("SET enable_external_access = false; SET lock_configuration = true")

    def create(self, name: str, schema: pa.Schema) -> None:
        self.schemas[name] = schema

    def append(self, name: str, row: tuple[Any, ...]) -> None:
        rows = self._rows.setdefault(name, [])
        rows.append(row)
        if len(rows) == BATCH:
            self._pack(name)

    def insert(self, name: str, table: pa.Table) -> None:
        """Add all rows of a table with the columns of the schema."""
        if not len(table):
            return
        table = table.select(self.schemas[name].names)
        begin = f"INSERT INTO {name}" if name in self._last else f"CREATE TABLE {name} AS"
        with self._refusing():
            self._connection.register("added", table)
            self._connection.execute(f"{begin} FROM added")
            self._connection.unregister("added")
        known = self._last.setdefault(name, {})
        for column in NUMBERS & {*table.column_names}:
            known[column] = max(known.get(column, 0), pc.max(table[column]).as_py())

    def replace(self, name: str, by: str) -> None:
        """Give the table `by` the name of another one, which it takes the place of."""
        self.drop(name)
        self.schemas[name] = self.schemas.pop(by)
        if self.has_rows(by):
            self._do(f"ALTER TABLE {by} RENAME TO {name}")
            self._last[name] = self._last.pop(by)

    def renew(self, name: str, sql: str) -> None:
        """Put the rows of a query in the place of a table that has rows; they have its columns."""
        self._do(f"CREATE TABLE renewed AS {sql}; DROP TABLE {name}; ALTER TABLE renewed RENAME TO {name}")

    def sort(self, name: str, order: Sequence[str]) -> None:
        """By columns of which the first is of whole numbers."""
        if self.has_rows(name):
            begin = "CREATE TABLE in_order AS"
            for portion in self._portions(name, order[0]):
                self._do(f"{begin} FROM {portion} ORDER BY {', '.join(order)}")
                begin = "INSERT INTO in_order"
            self._do(f"DROP TABLE {name}; ALTER TABLE in_order RENAME TO {name}")

    def drop(self, name: str) -> None:
        if self.has_rows(name):
            self._do(f"DROP TABLE {name}")
        self._last.pop(name, None)
        del self.schemas[name]

    def has_rows(self, name: str) -> bool:
        if self._rows.get(name):
            self._pack(name)
        return name in self._last

    def ask(self, sql: str, *values: Any) -> pa.Table:
        """The rows of a query that gives few, of tables that have rows."""
        with self._refusing():
            return self._connection.sql(sql, params=values or None).to_arrow_table()

    def update(self, sql: str) -> int:
        """Change rows of tables that have some; returns how many."""
        with self._refusing():
            return self._connection.execute(sql).fetchone()[0]

    def in_order(self, name: str, order: Sequence[str], columns: str = "*") -> Iterator[pa.RecordBatch]:
        """The `columns` of a table that has rows, by columns of which the first is of whole numbers."""
        for portion in self._portions(name, order[0]):
            yield from self.each(f"SELECT {columns} FROM {portion} ORDER BY {', '.join(order)}")

    def together(self, sql: str, key: str, order: str) -> Iterator[pa.RecordBatch]:
        """The rows of a query, so that those of a `key` stand together, by their `order`."""
        for portion in self._portions(f"({sql})", f"hash({key}) >> 1"):
            yield from self.each(f"FROM {portion} ORDER BY {key}, {order}")

    def each(self, sql: str) -> Iterator[pa.RecordBatch]:
        """The rows of a query that may give many, of tables that have rows."""
        with self._connection.cursor() as cursor, self._refusing():
            yield from cursor.sql(sql).to_arrow_reader(BATCH)

    def window(self, name: str, by: str, first: int, order: Sequence[str] = (), before: int = 0) -> pa.Table:
        """The rows of a table in whose column `by` are the numbers of the window from `first` on, and as many `before`
        that, by that and then by the columns `order`."""
        if not self.has_rows(name):
            return self.schemas[name].empty_table()
        order = ", ".join((by, *order))
        return self.ask(f"FROM {name} WHERE {by} >= ? AND {by} < ? ORDER BY {order}", first - before, first + WINDOW)

    def windows(self, name: str, by: str, order: Sequence[str] = ()) -> Iterator[tuple[int, pa.Table]]:
        """All rows of a table by its column `by` of numbers from 0 on: where a window begins, and its rows, if any."""
        if self.has_rows(name):
            for first in range(0, self._last[name][by] + 1, WINDOW):
                if len(table := self.window(name, by, first, order)):
                    yield first, table

    def close(self) -> None:
        self._connection.close()

    def _portions(self, source: str, by: str, depth: int = 0) -> Iterator[str]:
        """Tables of the rows of a table or query, each with a range of the whole numbers `by`, in their order, that are
        small enough to be sorted; the `source` itself where it is. Each goes when the next one is asked for."""
        size, least, most = self._measure(source, by)
        parts = min(size // PORTION + 1, PORTIONS, most - least + 1)
        if parts == 1:
            yield source
            return
        width, names = (most - least) // parts + 1, []
        for first in range(least, most + 1, width):
            names.append(f"portion_{depth}_{len(names)}")
            within = f"({by})::BIGINT BETWEEN {first} AND {first + width - 1}"
            self._do(f"CREATE OR REPLACE TABLE {names[-1]} AS FROM {source} WHERE {within}")
        if depth:
            self._do(f"DROP TABLE {source}")
        for name in names:
            yield from self._portions(name, by, depth + 1)
            self._do(f"DROP TABLE IF EXISTS {name}")

    def _measure(self, source: str, by: str) -> tuple[int, int, int]:
        """The bytes of all rows, and the least and the largest `by`. Few rows are not looked at."""
        rows = self.ask(f"SELECT count(*) FROM {source}")[0][0].as_py()
        if rows <= BATCH:
            return 0, 0, 0
        with self._refusing():
            found = self._connection.sql(f"FROM {source}")
        kinds = zip(found.columns, map(str, found.types), strict=True)
        long = "".join(f" + coalesce(sum({BYTES[kind]}({name})), 0)" for name, kind in kinds if kind in BYTES)
        asked = f"{8 * rows * len(found.columns)}{long}", f"min({by})", f"max({by})"
        row = self.ask(f"SELECT {', '.join(f'({one})::BIGINT' for one in asked)} FROM {source}")
        return tuple(column[0].as_py() for column in row.columns)

    def _pack(self, name: str) -> None:
        schema, rows = self.schemas[name], self._rows.pop(name)
        columns = zip(zip(*rows, strict=True), schema, strict=True)
        self.insert(name, pa.table([pa.array(values, field.type) for values, field in columns], schema=schema))

    def _do(self, sql: str) -> None:
        with self._refusing():
            self._connection.execute(sql)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
            if not any(words in str(error) for words in FULL):
                raise
            code = errno.ENOSPC
            raise FullDiskError(code, os.strerror(code), str(self._folder)) from error

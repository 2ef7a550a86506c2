"""The records of a collection, and what is left out of it, as tables of DuckDB in this process, which joins and sorts
them: in memory up to a limit, beyond that on the disk."""

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from pipeline.collections.records import Reject
from pipeline.compute import runtime
from pipeline.errors import JointspaceError
from pipeline.storage.batch import cannot_write, remove_own

THREADS = 4
"""At most: each has buffers of its own."""
TYPES = {
    pa.int32(): "INTEGER", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN", pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
}  # fmt: skip
BATCH = 1 << 15
"""Rows that are added, or read, together."""
TEMPORARY = re.compile(r"duckdb_temp_[\w-]+(\.\w+)?")
FULL = ("No space left", "Could not write", "max_temp_directory_size", "failed to offload")
"""What DuckDB says where the disk is full."""

GIVEN, FAULTY, UNUSABLE, SENTENCES, DOCUMENTS, BOXES = (stage << 56 for stage in range(6))
"""Places at which rejects begin: what intake leaves out, then images with a fault in a list, other images, and what
belongs to an image. From there on they are in the order of the records."""
REJECTS = {
    "rejects": pa.schema(
        [("place", pa.int64()), ("what", pa.string()), ("reason", pa.string()), ("name", pa.binary())]
        + [("file", pa.binary()), ("row", pa.int64())]
    )
}
"""Where there is a `name`, the `reason` has a place for it, `{!r}`."""
HEAD = "split_part(reason, ':', 1)"


class Tables:
    """Tables with these `schemas`, by name, to be filled row by row, and others made of them by SQL. What does not fit
    into `gigabytes` of memory lies in the `folder`, as files that TEMPORARY matches; they are gone when this is closed,
    and those of a killed process before.

    Names and texts of strangers that may not be Unicode are stored as bytes (`to_bytes`, `to_text`). Raises
    JointspaceError where the folder's disk is full, or the memory too little. The rows of no query are in order without
    ORDER BY.
    """

    def __init__(self, folder: Path, schemas: Mapping[str, pa.Schema], gigabytes: float = 1.0) -> None:
        remove_own(folder, TEMPORARY)
        self._folder = folder
        self._gigabytes = gigabytes
        self._schemas: dict[str, pa.Schema] = {}
        self._waiting: dict[str, list[tuple[Any, ...]]] = {}
        settings = {
            "threads": min(runtime.threads(), THREADS),
            "memory_limit": f"{round(gigabytes * 1000)}MB",
            "temp_directory": str(folder),
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        }
        self._connection = duckdb.connect(":memory:", config=settings)
        self._connection.execute(
            "SET enable_progress_bar = false; SET enable_external_access = false; SET lock_configuration = true"
        )
        self.create(schemas)

    def create(self, schemas: Mapping[str, pa.Schema]) -> None:
        """More tables, whose columns are of TYPES."""
        self._schemas |= schemas
        for name, schema in schemas.items():
            columns = ", ".join(f'"{field.name}" {TYPES[field.type]}' for field in schema)
            self._connection.execute(f"CREATE TABLE {name} ({columns})")

    def append(self, name: str, row: tuple[Any, ...]) -> None:
        rows = self._waiting.setdefault(name, [])
        rows.append(row)
        if len(rows) == BATCH:
            self._flush(name)

    def run(self, sql: str) -> int:
        """Change tables; returns the number of rows that are changed or made."""
        self._flush_all()
        with self._refusing():
            row = self._connection.execute(sql).fetchone()
        return row[0] if row else 0

    def value(self, sql: str) -> Any:
        """The only value that a query gives."""
        return self.fetch(sql)[0][0].as_py()

    def fetch(self, sql: str) -> pa.Table:
        """The rows of a query that gives few."""
        self._flush_all()
        with self._refusing():
            return self._connection.sql(sql).to_arrow_table()

    def rows(self, sql: str) -> Iterator[tuple]:
        """The rows of a query that may give many."""
        self._flush_all()
        with self._connection.cursor() as cursor, self._refusing():
            for batch in cursor.sql(sql).to_arrow_reader(BATCH):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def close(self) -> None:
        self._connection.close()
        remove_own(self._folder, TEMPORARY)

    def _flush_all(self) -> None:
        for name in list(self._waiting):
            self._flush(name)

    def _flush(self, name: str) -> None:
        schema = self._schemas[name]
        columns = zip(zip(*self._waiting.pop(name), strict=True), schema, strict=True)
        table = pa.table([pa.array(values, field.type) for values, field in columns], schema=schema)
        with self._refusing():
            self._connection.register("added", table)
            self._connection.execute(f"INSERT INTO {name} FROM added")
            self._connection.unregister("added")

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
            if any(words in str(error) for words in FULL):
                raise cannot_write(self._folder, 0, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) from error
            if not isinstance(error, duckdb.OutOfMemoryException):
                raise
            remedy = f"more than {self._gigabytes:g} GB; raise collection.memory_gb"
            raise JointspaceError(f"the tables of the collection need {remedy}") from error


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class RejectSummary:
    """How many rejects there are of each kind and (up to its colon) reason, in the order in which they came first, and
    the most frequent whole reason of the images with its count, where none is kept."""

    counts: Mapping[tuple[str, str], int]
    images: tuple[str, int] | None = None

    def of(self, what: str, *first_words: str) -> int:
        """How many of a kind have a reason that begins so."""
        return sum(n for (kind, head), n in self.counts.items() if kind == what and head.startswith(first_words))

    def most_frequent(self, what: str) -> tuple[str, int]:
        """The most frequent reason of a kind, and its count."""
        return max(((head, n) for (kind, head), n in self.counts.items() if kind == what), key=itemgetter(1))


class Rejects:
    """The rejects in `tables`; iterating gives them in order."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def add(self, seq: int, reject: Reject) -> None:
        """What a reader cannot use of the record `seq`."""
        reason = reject.reason.encode("utf-8", "backslashreplace").decode()
        self._tables.append("rejects", (GIVEN + seq, reject.what, reason, None, to_bytes(reject.file), reject.row))

    def __iter__(self) -> Iterator[Reject]:
        rows = self._tables.rows('SELECT file, "row", what, reason, name FROM rejects ORDER BY place')
        for file, row, what, reason, name in rows:
            yield Reject(to_text(file), row, what, reason if name is None else reason.format(to_text(name)))

    def summarise(self, none_kept: bool) -> RejectSummary:
        """With the reason of the images if there is `none_kept`."""
        heads = f"SELECT what, {HEAD}, count(*) FROM rejects GROUP BY ALL ORDER BY min(place)"
        counts = {(what, head): count for what, head, count in self._tables.rows(heads)}
        images = (
            "SELECT reason, name, count(*) FROM rejects WHERE what = 'images' GROUP BY ALL"
            " ORDER BY count(*) DESC, min(place) LIMIT 1"
        )
        for reason, name, count in self._tables.rows(images) if none_kept else ():
            return RejectSummary(counts, (reason if name is None else reason.format(to_text(name)), count))
        return RejectSummary(counts)

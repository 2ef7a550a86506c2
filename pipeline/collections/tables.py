"""DuckDB tables for the records of a collection and its rejects, which are joined and sorted with SQL.

Tables are in memory up to a limit. Larger tables are on disk.
"""

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from operator import itemgetter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from pipeline.collections.records import Reject
from pipeline.compute import runtime
from pipeline.errors import JointspaceError
from pipeline.storage.batch import cannot_write, remove_own

MAX_THREADS = 4
"""Largest number of threads of DuckDB. Each thread needs its own buffers."""
SQL_TYPES = {
    pa.int32(): "INTEGER", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN", pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
}  # fmt: skip
BATCH_ROWS = 1 << 15
"""Number of rows that are added, or read, at once."""
TEMPORARY = re.compile(r"duckdb_temp_[\w-]+(\.\w+)?")
"""Pattern of the names of DuckDB's temporary files."""
DISK_FULL = ("No space left", "Could not write", "max_temp_directory_size", "failed to offload")
"""Parts of DuckDB's messages that say that the disk is full."""

Cell = str | bytes | int | float | None
"""A value of a table."""


class RejectPosition(IntEnum):
    """The positions at which kinds of rejects begin in the report. Rejects of a kind are in the order of records."""

    RECORDS = 0
    FAULTY = 1 << 56
    """Position of images with a fault in a list."""
    UNUSABLE = 2 << 56
    """Position of images that are rejected for another reason, such as a damaged photo or a duplicate."""
    SENTENCES = 3 << 56
    DOCUMENTS = 4 << 56
    BOXES = 5 << 56


REJECTS = {
    "rejects": pa.schema(
        [("ordinal", pa.int64()), ("what", pa.string()), ("reason", pa.string()), ("name", pa.binary())]
        + [("file", pa.binary()), ("row", pa.int64())]
    )
}
"""The table of rejects. If a reject has a `name`, its `reason` has `{!r}` in the place where the name belongs."""
COMMON_FIELDS = {"seq": pa.int64(), "key": pa.binary()}
SOURCE_FIELDS = {"file": pa.binary(), "row": pa.int64()}
LOCATION_FIELDS = {"path": pa.string(), "member": pa.string(), "offset": pa.int64(), "size": pa.int64()}
FIELDS = {
    "images": {
        **dict.fromkeys(("implied", "there"), pa.bool_()), **LOCATION_FIELDS,
        **dict.fromkeys(("split", "fault"), pa.string()),
    },
    "sentences": {"fault": pa.string(), "number": pa.int64(), "text": pa.string()},
    "documents": {"implied": pa.bool_(), **dict.fromkeys(("fault", "title", "tags", "description"), pa.string())},
    "boxes": {
        "fault": pa.string(), **dict.fromkeys(("x1", "y1", "x2", "y2", "score"), pa.float64()), "label": pa.string(),
    },
    "own_columns": {"packed": pa.string()},
}  # fmt: skip
RECORD_TABLES = {
    kind: pa.schema([*(COMMON_FIELDS | fields | SOURCE_FIELDS).items()]) for kind, fields in FIELDS.items()
} | REJECTS
"""One table for each kind of record, and the rejects.

`file` and `row` say where a record comes from, and `fault` why it cannot be used. `there` is false for an image without
a file of exactly its name. An `implied` image only counts if no earlier record has named the image. An `implied`
document only counts if the record directly before it is the first that names its image.
"""
MATCH_TABLES = {
    "respelt": pa.schema(
        [("path", pa.string()), ("file", pa.string()), ("fault", pa.string()), ("reading", pa.int64())]
    ),
    "renamed": pa.schema([("key", pa.binary()), ("image", pa.int64()), ("reading", pa.int64())]),
    "ambiguous": pa.schema([("key", pa.binary()), ("reason", pa.string())]),
    "taken": pa.schema([("image", pa.int64())]),
    "taken_names": pa.schema([("key", pa.binary())]),
    "captions_taken": pa.schema([("image", pa.int64()), ("line", pa.string())]),
}
"""Results of matching names.

`reading` is the number of the Reading by which a name matches. `respelt` has the file that the path of an image means,
or the fault of the path. `renamed` has the image that a key means. `ambiguous` has the keys that can mean several
images. `taken` has the images that are removed with all their records. `taken_names` has the keys of records that are
removed although they belong to no image. `captions_taken` has the lines PHOTO TAB CAPTION of the takedown list, each
with the image PHOTO, of which only the caption CAPTION is removed.
"""
INTAKE_TABLES = RECORD_TABLES | MATCH_TABLES
OWNED_KINDS = {
    "sentences": "sentences",
    "documents": "documents",
    "boxes": "boxes",
    "own_columns": "rows of own columns",
}
"""The kinds of records that belong to images, with their nouns in notes for the user."""
OUTCOMES = {
    "outcomes": pa.schema(
        [("seq", pa.int64()), ("width", pa.int32()), ("height", pa.int32()), ("sha256", pa.string())]
        + [("failure", pa.string()), ("seen", pa.string())]
    )
}
"""The result of the inspection of each image. `failure` is the reason why the image cannot be used, or null. `seen` has
the folder, the time and the camera of the photo, as OwnColumns.pack returns them."""
REASON_HEAD = "split_part(reason, ':', 1)"


class Tables:
    """Tables that are filled row by row, and tables that SQL makes from them.

    `schemas` has the columns of each table by its name. Data beyond `gigabytes` of memory are written to temporary
    files in `folder`, which are removed when the tables are closed. Temporary files of a killed process are removed
    first. Untrusted names and texts, which may not be Unicode, are stored as bytes (`to_bytes`, `to_text`). The rows of
    a query are only ordered if it has ORDER BY. The methods raise JointspaceError if the disk is full or the memory is
    too small.
    """

    def __init__(self, folder: Path, schemas: Mapping[str, pa.Schema], gigabytes: float = 1.0) -> None:
        remove_own(folder, TEMPORARY)
        self._folder = folder
        self._gigabytes = gigabytes
        self._schemas: dict[str, pa.Schema] = {}
        self._waiting: dict[str, list[tuple[Cell, ...]]] = {}
        settings: dict[str, str | bool | int | float | list[str]] = {
            "threads": min(runtime.threads(), MAX_THREADS),
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
        """Create tables in addition to the existing tables.

        `schemas` has the columns of each table by its name. Their Arrow types must be keys of SQL_TYPES.
        """
        self._schemas |= schemas
        for name, schema in schemas.items():
            columns = ", ".join(f'"{field.name}" {SQL_TYPES[field.type]}' for field in schema)
            self._connection.execute(f"CREATE TABLE {name} ({columns})")

    def append(self, name: str, row: tuple[Cell, ...]) -> None:
        """Add a row to a table. Rows are kept in a list until the next query or until there are BATCH_ROWS of them."""
        rows = self._waiting.setdefault(name, [])
        rows.append(row)
        if len(rows) == BATCH_ROWS:
            self._flush(name)

    def run(self, sql: str) -> int:
        """Run a statement that changes or makes a table, and return the number of rows that it has changed or made."""
        self._flush_all()
        with self._refusing():
            row = self._connection.execute(sql).fetchone()
        return row[0] if row else 0

    def value(self, sql: str) -> Any:
        """Return the only value of a query."""
        return self.fetch(sql)[0][0].as_py()

    def fetch(self, sql: str) -> pa.Table:
        """Return the rows of a query, which must fit into memory."""
        self._flush_all()
        with self._refusing():
            return self._connection.sql(sql).to_arrow_table()

    def rows(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query as tuples. BATCH_ROWS rows are in memory at once."""
        self._flush_all()
        with self._connection.cursor() as cursor, self._refusing():
            for batch in cursor.sql(sql).to_arrow_reader(BATCH_ROWS):
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
            if any(words in str(error) for words in DISK_FULL):
                raise cannot_write(self._folder, 0, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) from error
            if not isinstance(error, duckdb.OutOfMemoryException):
                raise
            raise JointspaceError(
                f"The tables of the collection need more than {self._gigabytes:g} GB of memory. Raise"
                " collection.memory_gb."
            ) from error


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class RejectSummary:
    """The numbers of rejects.

    `counts` has the number of rejects for each kind and reason, in the order of their first occurrence. Only the part
    of a reason before the first colon counts. If no image is kept, `images` has the most frequent complete reason for
    rejecting images, with its count. Otherwise `images` is None.
    """

    counts: Mapping[tuple[str, str], int]
    images: tuple[str, int] | None = None

    def count_rejects(self, what: str, *first_words: str) -> int:
        """Return the number of rejects of a kind whose reason begins with one of these words."""
        return sum(n for (kind, head), n in self.counts.items() if kind == what and head.startswith(first_words))

    def most_frequent(self, what: str) -> tuple[str, int]:
        """Return the most frequent reason for rejecting records of a kind, up to its first colon, and its count. Raises
        ValueError if no record of this kind is rejected."""
        return max(((head, n) for (kind, head), n in self.counts.items() if kind == what), key=itemgetter(1))


class Rejects:
    """The rejects in `tables`, which can be iterated in order."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def add(self, seq: int, reject: Reject) -> None:
        """Add the reject of a reader. `seq` is its number among all records in the order of reading."""
        reason = reject.reason.encode("utf-8", "backslashreplace").decode()
        ordinal = RejectPosition.RECORDS + seq
        self._tables.append("rejects", (ordinal, reject.what, reason, None, to_bytes(reject.file), reject.row))

    def __iter__(self) -> Iterator[Reject]:
        rows = self._tables.rows('SELECT file, "row", what, reason, name FROM rejects ORDER BY ordinal')
        for file, row, what, reason, name in rows:
            yield Reject(to_text(file), row, what, reason if name is None else reason.format(to_text(name)))

    def summarise(self, none_kept: bool) -> RejectSummary:
        """Return a summary of the rejects. `none_kept` says whether no image is kept, so that the summary must have the
        most frequent complete reason for rejecting images."""
        heads = f"SELECT what, {REASON_HEAD}, count(*) FROM rejects GROUP BY ALL ORDER BY min(ordinal)"
        counts = {(what, head): count for what, head, count in self._tables.rows(heads)}
        images = (
            "SELECT reason, name, count(*) FROM rejects WHERE what = 'images' GROUP BY ALL"
            " ORDER BY count(*) DESC, min(ordinal) LIMIT 1"
        )
        for reason, name, count in self._tables.rows(images) if none_kept else ():
            return RejectSummary(counts, (reason if name is None else reason.format(to_text(name)), count))
        return RejectSummary(counts)

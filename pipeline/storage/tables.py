"""Parquet tables: names and text, written in memory and published atomically."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import InputError, IntegrityError
from pipeline.storage.atomic import Sidecar, publish, read_verified

MOST_UNPACKED, SPARE_BYTES = 1000, 1 << 24
"""A table may unpack to so many times its bytes, and to so many bytes more."""


def write_table(
    path: Path, kind: str, table: pa.Table, *, fingerprint: str, details: Mapping[str, Any] | None = None
) -> Sidecar:
    """Publish `table` as one Parquet file with its sidecar."""
    return publish(path, to_parquet(table), kind=kind, rows=table.num_rows, fingerprint=fingerprint, details=details)


def to_parquet(table: pa.Table) -> memoryview:
    """`table` as the bytes of a Parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getbuffer()


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """`rows` as comma-separated values under a line of all their keys; a key that a row lacks is left empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def read_table(path: Path, kind: str) -> tuple[pa.Table, Sidecar]:
    """A published table after its sha256 has been checked."""
    data, sidecar = read_verified(path, kind)
    return from_parquet(data, path, sidecar.rows), sidecar


def from_parquet(data: bytes, path: Path, rows: int | None = None) -> pa.Table:
    """The table in the bytes of the Parquet file `path`, of `rows` rows where that is known.

    Raises IntegrityError where the bytes are no such table or would unpack to far more than they are.
    """
    try:
        about = pq.read_metadata(pa.BufferReader(data))
        groups = (about.row_group(number) for number in range(about.num_row_groups))
        unpacked = sum(group.column(c).total_uncompressed_size for group in groups for c in range(group.num_columns))
        if rows is not None and about.num_rows != rows:
            raise IntegrityError(f"{path} has {about.num_rows} rows, its commit says {rows}; run its stage again")
        if unpacked > SPARE_BYTES + MOST_UNPACKED * len(data):
            raise IntegrityError(f"{path} claims to unpack to {unpacked:,} bytes; run its stage again")
        # Arrow's threads abort some processes that end while they are still starting.
        return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise IntegrityError(f"{path} is no Parquet file that can be read ({error}); run its stage again") from error


def read_numbers(path: Path) -> list[int]:
    """The whole numbers of a text file, one a line. Raises InputError naming the first line that holds none."""
    try:
        lines = Path(path).read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); give a text file") from error
    numbers = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            if not line.strip().isascii() or not line.strip().isdigit():
                raise InputError(f"{path} line {number} is {line.strip()!r}, no whole number; write one a line")
            numbers.append(int(line))
    return numbers

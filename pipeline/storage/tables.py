"""Parquet tables: names and text, written in memory and published atomically."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import Sidecar, publish, read_verified


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
    table = pq.read_table(pa.BufferReader(data))
    if table.num_rows != sidecar.rows:
        raise IntegrityError(f"{path} has {table.num_rows} rows, its sidecar says {sidecar.rows}; run its stage again")
    return table, sidecar

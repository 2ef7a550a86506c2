"""Parquet tables: names and text, written in memory and published atomically."""

import io
from collections.abc import Mapping
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


def read_table(path: Path, kind: str) -> tuple[pa.Table, Sidecar]:
    """A published table after its sha256 has been checked."""
    data, sidecar = read_verified(path, kind)
    table = pq.read_table(pa.BufferReader(data))
    if table.num_rows != sidecar.rows:
        raise IntegrityError(f"{path} has {table.num_rows} rows, its sidecar says {sidecar.rows}; run its stage again")
    return table, sidecar

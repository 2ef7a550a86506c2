"""What `ingest` read of a remote collection: size and sha256 of each tar shard, so that a changed one is noticed."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from pipeline.storage.atomic import sidecar_path
from pipeline.storage.batch import FileBatch
from pipeline.storage.fingerprint import fingerprint
from pipeline.storage.reading import is_there
from pipeline.storage.tables import read_table, require_columns, write_table

KIND, FILE, VERSION = "objects", "objects.parquet", 1
SCHEMA = pa.schema([("path", pa.string()), ("size", pa.int64()), ("sha256", pa.string())])
Objects = Mapping[str, tuple[int, str]]


def write_objects(folder: Path, objects: Objects, batch: FileBatch) -> None:
    """Add the table to a manifest's `batch`; there is none for files of this machine."""
    path = folder / FILE
    if not objects:
        for stale in (sidecar_path(path), path):
            stale.unlink(missing_ok=True)
        return
    rows = [{"path": name, "size": size, "sha256": digest} for name, (size, digest) in sorted(objects.items())]
    table, digest = pa.Table.from_pylist(rows, SCHEMA), fingerprint(KIND, VERSION, rows)
    write_table(path, KIND, table, fingerprint=digest, batch=batch)


def read_objects(folder: Path) -> Objects:
    """Size and sha256 by path, relative to the root of the collection."""
    path = folder / FILE
    if not is_there(sidecar_path(path)):
        return {}
    table, _ = read_table(path, KIND)
    require_columns(path, table.schema, SCHEMA)
    return {name: (size, digest) for name, size, digest in zip(*table.to_pydict().values(), strict=True)}

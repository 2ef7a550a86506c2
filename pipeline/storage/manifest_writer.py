"""What `ingest` writes: the manifest, its tables by shard, their fingerprints, and its commit."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.errors import IntegrityError
from pipeline.storage.batch import FileBatch
from pipeline.storage.commit import Commit, Provenance, describe_file, open_commit, publish_record, remove_from, seal
from pipeline.storage.files import is_regular
from pipeline.storage.json_files import fingerprint, to_json
from pipeline.storage.manifest import (
    REJECTS,
    TABLES,
    VERSION,
    reject_lines,
    shard_commit,
    table_file,
)
from pipeline.storage.tables import to_parquet

DIGEST_ROWS = 1 << 16


def write_manifest(
    folder: Path,
    root: Path,
    parts: Iterable[Mapping[str, pa.Table]],
    rejects: Iterable[Mapping[str, Any]],
    counts: Mapping[str, Mapping[str, int]],
    shard_size: int,
    left_out: Mapping[str, int] = MappingProxyType({}),
    provenance: Provenance | None = None,
) -> None:
    """Publish a manifest, all at once; `manifest.json` comes last and is its commit. Shards that are there stay.

    Each of `parts` has the tables of TABLES for the next images, `images` with the user's own columns after ours;
    `rejects` has one mapping {file, row, what, reason} for each thing left out; `counts` has {given, kept, rejected,
    duplicate} of each table, and of files how many are `left_out`, too, for which `left_out` has the reasons. Raises
    IntegrityError if these do not add up.
    """
    for what, count in counts.items():
        fates = count["kept"] + count["rejected"] + count["duplicate"] + count.get("left_out", 0)
        if count["given"] != fates:
            raise IntegrityError(f"counts of {what} are not conserved: {dict(count)}")
    folder, batch, contents, splits = Path(folder), FileBatch(), [], Counter()
    gone: list[Path] = []
    provenance = provenance or Provenance(folder.parent, "", 0)
    with batch.discarded_on_error():
        files = {REJECTS: batch.add(folder / REJECTS, reject_lines(rejects))}
        for number, (rows, tables) in enumerate(divide(parts, shard_size)):
            record = {"shard": number, "rows": rows, **shard_fingerprints(tables)}
            contents.append(record["content"])
            splits.update(tables["images"]["split"].to_pylist())
            path = shard_commit(folder, number)
            files[f"shards/{path.name}"] = _add_shard(batch, path, record, tables, provenance.root, gone)
        value = {
            "fingerprint": fingerprint("manifest", VERSION, [shard_size, *contents]),
            "version": VERSION,
            "root": str(root),
            "shard_size": shard_size,
            "shards": len(contents),
            "contents": contents,
            "counts": {what: dict(count) for what, count in counts.items()},
            "left_out": dict(left_out),
            "splits": dict(sorted(splits.items())),
        }
        publish_record(folder / "manifest.json", value, provenance=provenance, files=files, batch=batch)
    batch.publish()
    for path in gone:
        path.unlink(missing_ok=True)
    remove_from(len(contents), partial(shard_commit, folder))


def _add_shard(
    batch: FileBatch,
    path: Path,
    record: Mapping[str, Any],
    tables: Mapping[str, pa.Table],
    root: Path,
    gone: list[Path],
) -> dict[str, Any]:
    """Add the shard whose commit is `path`, unless it is there; returns what vouches for that commit. Files of tables
    in which it has no rows any more are added to `gone`."""
    before = _shard(path)
    if before is not None and before.value.get("content") == record["content"]:
        return describe_file(path)
    files = {
        (file := table_file(record["shard"], name)): batch.add(path.with_name(file), to_parquet(table))
        for name, table in tables.items()
        if table.num_rows
    }
    gone += [path.with_name(name) for name in (before.files if before else ()) if name not in files]
    commit = seal(path, record, files, Provenance(root, "", 0))
    return batch.add(path, to_json(commit.value), commit=True)


def _shard(path: Path) -> Commit | None:
    """The commit of a shard that is whole; None where there is none."""
    try:
        return open_commit(path) if is_regular(path) else None
    except IntegrityError:
        return None


def divide(parts: Iterable[Mapping[str, pa.Table]], shard_size: int) -> Iterator[tuple[dict[str, list[int]], dict]]:
    """Of each shard the first and last rows in each of TABLES, and these rows."""
    held: dict[str, pa.Table] = {}
    ends = dict.fromkeys(TABLES, 0)
    for part in chain(parts, [None]):
        new = {name: _cast(part[name], schema) for name, schema in TABLES.items()} if part else {}
        held = {name: pa.concat_tables([held[name], table]) if held else table for name, table in new.items()} or held
        while held and (held["images"].num_rows >= shard_size or (part is None and held["images"].num_rows)):
            last = ends["images"] + shard_size
            cuts = {name: int(np.searchsorted(table["image_id"], last)) for name, table in held.items()}
            rows = {name: [ends[name], ends[name] + cut] for name, cut in cuts.items()}
            yield rows, {name: table[: cuts[name]].combine_chunks() for name, table in held.items()}
            ends = {name: last for name, (_, last) in rows.items()}
            held = {name: table[cuts[name] :] for name, table in held.items()}


def shard_fingerprints(tables: Mapping[str, pa.Table]) -> dict[str, str]:
    """Of one shard's tables: the FINGERPRINTS in its commit, and `content`, of all columns of all of them."""
    images, texts = tables["images"], {name: _table_digest(tables[name]) for name in TABLES if name != "images"}
    return {
        "images": _table_digest(images.select(["image_id", "sha256"])),
        "splits": _table_digest(images.select(["image_id", "split"])),
        **texts,
        "content": fingerprint("content", VERSION, [_table_digest(images), *texts.values()]),
    }


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of the schema, and further ones as they are."""
    return table.cast(pa.schema([*schema, *(field for field in table.schema if field.name not in schema.names)]))


def _table_digest(table: pa.Table) -> str:
    """A hash of the values, and of the types of the user's own columns, independent of their layout in memory; in
    blocks, since Python objects are large."""
    ours = {field for schema in TABLES.values() for field in schema}
    columns = [field.name if field in ours else [field.name, str(field.type)] for field in table.schema]
    for at, field in enumerate(table.schema):
        if pa.types.is_temporal(field.type):  # which JSON has not
            table = table.set_column(at, field.name, table[at].cast(pa.string()))
    parts = (table.slice(start, DIGEST_ROWS).to_pydict() for start in range(0, table.num_rows, DIGEST_ROWS))
    return fingerprint("table", VERSION, [columns, *(fingerprint("rows", VERSION, p) for p in parts)])

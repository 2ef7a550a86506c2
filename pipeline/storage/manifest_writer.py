"""Writing a manifest: its tables by shard, their fingerprints, and its commit."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.errors import IntegrityError
from pipeline.remote.paths import Place
from pipeline.storage.atomic import CHECK, read_json, to_json
from pipeline.storage.batch import FileBatch, is_regular
from pipeline.storage.commits import fault_of
from pipeline.storage.fingerprint import fingerprint
from pipeline.storage.forms import ManifestShard
from pipeline.storage.manifest import TABLES, VERSION, shard_commit, table_file
from pipeline.storage.objects import Objects, write_objects
from pipeline.storage.rejects import to_lines
from pipeline.storage.tables import to_parquet

DIGEST_ROWS = 1 << 16
SHARD_FILE = re.compile(r"\d{5,}\.json")  # names of the commits in shards/


def write_manifest(
    folder: Path,
    root: Place,
    parts: Iterable[Mapping[str, pa.Table]],
    rejects: Iterable[Mapping[str, Any]],
    counts: Mapping[str, Mapping[str, int]],
    shard_size: int,
    objects: Objects = MappingProxyType({}),
    left_out: Mapping[str, int] = MappingProxyType({}),
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
    stale = {path: _own(path) for path in (folder / "shards").glob("*.json") if SHARD_FILE.fullmatch(path.name)}
    with batch.discarded_on_error():
        rejected = batch.add(folder / "rejects.jsonl", to_lines(rejects))
        for number, (rows, own) in enumerate(divide(parts, shard_size)):
            record = {"shard": number, "rows": rows, **shard_fingerprints(own)}
            contents.append(record["content"])
            splits.update(own["images"]["split"].to_pylist())
            _add_shard(batch, shard_commit(folder, number), record, own, stale)
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
            "rejects": rejected,
        }
        write_objects(folder, objects, batch)
        batch.add(folder / "manifest.json", to_json(value), commit=True)
    batch.publish()
    _remove(stale, len(contents))


def _add_shard(
    batch: FileBatch, path: Path, record: Mapping[str, Any], tables: Mapping[str, pa.Table], stale: dict[Path, Any]
) -> None:
    """Add the shard whose commit is `path`, unless it is there; takes what stays of it out of the `stale`."""
    old = stale.pop(path, {})
    if all(old.get(name) == value for name, value in record.items()) and not _damaged(path, old):
        return
    files = {}
    for name, table in tables.items():
        if table.num_rows:
            data = to_parquet(table)
            file = table_file(record["shard"], name)
            files[file] = {"bytes": data.nbytes, "sha256": batch.add(path.with_name(file), data)}
    batch.add(path, to_json({**record, "files": files}), commit=True)
    if gone := {name: about for name, about in old.get("files", {}).items() if name not in files}:
        stale[path] = {"files": gone}


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


def _own(path: Path) -> dict[str, Any]:
    """The content of the JSON file if `write_manifest` wrote it, else nothing."""
    try:
        value = read_json(path) if is_regular(path) else None
    except (IntegrityError, OSError):
        return {}
    own = isinstance(value, dict) and value.keys() == {*ManifestShard.model_fields, CHECK}
    return {name: part for name, part in value.items() if name != CHECK} if own else {}


def _damaged(commit: Path, record: Mapping[str, Any]) -> bool:
    return any(fault_of(commit.with_name(name), about) for name, about in record["files"].items())


def _remove(stale: Mapping[Path, Mapping[str, Any]], count: int) -> None:
    """Remove the files that these commits of shards list, unchanged, and the commits beyond the `count` first."""
    for commit, record in stale.items():
        for name, about in record.get("files", {}).items():
            number, _, _ = name.partition(".")
            path = commit.with_name(name)
            if number == commit.stem and path.name == name and is_regular(path) and not fault_of(path, about):
                path.unlink()
        if record and int(commit.stem) >= count:
            commit.unlink(missing_ok=True)


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

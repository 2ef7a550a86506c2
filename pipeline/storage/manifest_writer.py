"""What `ingest` writes: blocks of what it has found out about images so far, so that a killed one goes on where it was,
and the manifest: its tables by shard, their fingerprints, and its commit.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.errors import IntegrityError
from pipeline.storage.batch import FileBatch, remove_own
from pipeline.storage.commit import Commit, Provenance, describe_file, open_commit, publish_record, remove_from, seal
from pipeline.storage.files import is_regular, is_there
from pipeline.storage.json_files import CHECK, canonical_json, fingerprint, publish_json, read_json, to_json
from pipeline.storage.manifest import (
    REJECTS,
    TABLES,
    VERSION,
    reject_lines,
    shard_commit,
    table_file,
)
from pipeline.storage.tables import to_parquet
from pipeline.workers import Failure

BLOCK = 2048
"""Images that a kill costs at most: on a slow core less than a minute."""
FILES = re.compile(r"\d{5,}\.json")

Location = tuple[str, int | None, int | None]


class Block(NamedTuple):
    """The `number`-th images, where they are, and what vouches for what was found out about them."""

    number: int
    digest: str
    locations: list[Location]


def _blocks(locations: Iterable[Location]) -> Iterator[list[Location]]:
    locations = iter(locations)
    while block := list(islice(locations, BLOCK)):
        yield block


class InspectedImages:
    """The blocks in `folder`. One counts as long as its images have the same locations, `state(path)` says the same of
    their files, and `limits` are those by which they were inspected."""

    def __init__(self, folder: Path, state: Callable[[str], str], limits: str) -> None:
        self.folder, self.state, self.limits = Path(folder), state, limits

    def resume(
        self,
        locations: Callable[[], Iterable[Location]],
        inspect: Callable[[Iterator[Location]], Iterator[Any]],
        restore: Callable[[list], Any],
        elsewhere: Callable[[Iterator[Block]], Iterable[int]] = lambda blocks: (),
    ) -> Iterator[Any]:
        """One outcome for each of `locations()`, in order: a tuple of plain values or a Failure. Outcomes of a killed
        run are read and rebuilt by `restore`; the others come from `inspect`. `elsewhere`, if given, may inspect and
        `write` whole blocks first and yields their numbers."""
        digests = [self._digest(block) for block in _blocks(locations())]
        kept = [self._read(number, digest) is not None for number, digest in enumerate(digests)]
        blocks = zip(range(len(kept)), digests, _blocks(locations()), tuple(kept), strict=True)
        for number in elsewhere(Block(number, digest, own) for number, digest, own, known in blocks if not known):
            kept[number] = self._read(number, digests[number]) is not None
        blocks = zip(_blocks(locations()), kept, strict=True)
        wanted = (location for block, known in blocks if not known for location in block)
        with closing(inspect(wanted)) as outcomes:
            for number, digest in enumerate(digests):
                if kept[number]:
                    rows = self._read(number, digest)
                    yield from (Failure(row) if isinstance(row, str) else restore(row) for row in rows)
                    continue
                found = list(islice(outcomes, BLOCK))
                self.write(number, digest, found)
                yield from found

    def write(self, number: int, digest: str, found: Iterable[Any]) -> None:
        """Keep what was found out about the images of a block: tuples of plain values, or Failures."""
        rows = [one.reason if isinstance(one, Failure) else list(one) for one in found]
        publish_json(self._path(number), {"digest": digest, "found": rows})

    def clear(self) -> None:
        remove_own(self.folder, FILES)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05d}.json"

    def _read(self, number: int, digest: str) -> list[Any] | None:
        """The results of a block; None if there are none of these images."""
        try:
            value = read_json(self._path(number)) if is_there(self._path(number)) else {}
        except IntegrityError:
            return None
        own = isinstance(value, dict) and value.keys() == {"digest", "found", CHECK} and value["digest"] == digest
        return value["found"] if own else None

    def _digest(self, block: Iterable[Location]) -> str:
        state = cache(self.state)
        values = [[*location, state(location[0])] for location in block]
        return hashlib.sha256(canonical_json([self.limits, values])).hexdigest()


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

"""The manifest: which images, sentences and documents a run is made of. Its row order holds everywhere.

`image_id` counts from 0, `sentence_id` likewise, ordered by image. Shard k holds the images [k * shard_size, (k + 1) *
shard_size) and what belongs to them: `shards/00000.images.parquet`, `shards/00000.sentences.parquet` and so on, a file
for each table in which it has rows. Their commit, `shards/00000.json`, says which rows of all these are, and has
fingerprints of their contents, so that images added at the end leave the earlier shards, and whatever was made from
them, valid. `manifest.json` is written last and vouches for the commits of the shards and for `rejects.jsonl`. A job
reads the tables of its own shards.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.compute.chunks import divide_into_chunks
from pipeline.errors import IntegrityError
from pipeline.storage.batch import FileBatch, FileSum, publish_bytes
from pipeline.storage.commit import (
    Commit,
    Provenance,
    describe_file,
    file_fault,
    open_commit,
    publish_record,
    read_commit,
    remove_from,
    seal,
)  # fmt: skip
from pipeline.storage.files import is_regular, read_bytes
from pipeline.storage.json_files import Json, canonical_json, fingerprint, to_json
from pipeline.storage.tables import PackedTable, to_parquet

VERSION = 3
IMAGES = pa.schema(
    [
        ("image_id", pa.int64()),
        ("path", pa.string()),  # relative to the data root, with forward slashes
        ("member", pa.string()),  # the name inside a tar shard or a Parquet file, else null
        ("offset", pa.int64()),  # of the member's bytes in the shard, or its row in the Parquet file; else null
        ("size", pa.int64()),  # the number of these bytes; null for a row of a Parquet file
        ("split", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("sha256", pa.string()),
    ]
)
SENTENCES = pa.schema([("sentence_id", pa.int64()), ("image_id", pa.int64()), ("text", pa.string())])
DOCUMENTS = pa.schema(
    [("image_id", pa.int64()), ("title", pa.string()), ("tags", pa.string()), ("description", pa.string())]
)
BOXES = pa.schema(
    [("image_id", pa.int64()), *((c, pa.float32()) for c in ("x1", "y1", "x2", "y2", "score")), ("label", pa.string())]
)
FINGERPRINTS = ("images", "splits", "sentences", "documents", "boxes")
"""Contents with a fingerprint in the commit of a shard."""
REJECTS = "rejects.jsonl"
DIGEST_ROWS = 1 << 16
TABLES = {"images": IMAGES, "sentences": SENTENCES, "documents": DOCUMENTS, "boxes": BOXES}


def shard_commit(folder: Path, number: int) -> Path:
    return Path(folder) / "shards" / f"{number:05d}.json"


def table_file(number: int, name: str) -> str:
    """The name of the file, beside the commit of its shard, with the shard's rows of a table."""
    return f"{number:05d}.{name}.parquet"


@dataclass(frozen=True)
class ShardRows:
    """Shard `number` has the image ids [first_image, last_image), the sentence ids [first_sentence, last_sentence), and
    from the row `first_document` on documents."""

    number: int
    first_image: int
    last_image: int
    first_sentence: int
    last_sentence: int
    first_document: int
    fingerprints: Mapping[str, str]


class Manifest:
    """A published manifest, its tables read when first asked for: those of a shard by `table`, all rows of all shards
    by the properties `images`, `sentences`, `documents` and `boxes`, which hold them from then on."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        path = self.folder / "manifest.json"
        self.summary: Mapping[str, Any] = read_commit(path).value
        self.fingerprint: str = self.summary["fingerprint"]
        self.root = Path(self.summary["root"])
        self.shard_size: int = self.summary["shard_size"]
        self.n_shards: int = self.summary["shards"]
        self.n_images = sum(self.summary["splits"].values())
        self._bounds: dict[str, np.ndarray] = {}
        self._held: dict[str, tuple[int, pa.Table]] = {}

    @property
    def chunks(self) -> list[range]:
        """Ranges of shards that are summed together, in order."""
        return divide_into_chunks(self.n_shards, self.shard_size)

    def table(self, name: str, number: int) -> pa.Table:
        """The rows of one shard in a table of TABLES; those that were read last stay in memory.

        Raises IntegrityError if they are damaged or of another manifest.
        """
        if (held := self._held.get(name)) and held[0] == number:
            return held[1]
        path = self.folder / "shards" / table_file(number, name)
        about = self._record(number)["files"].get(path.name)
        table = TABLES[name].empty_table()
        if about is not None:
            _require_whole(path, about)
            table = PackedTable(read_bytes(path), path).unpack()
        self._held[name] = number, table
        return table

    def _whole(self, name: str) -> pa.Table:
        tables = [self.table(name, number) for number in range(self.n_shards)]
        return pa.concat_tables(tables) if tables else TABLES[name].empty_table()

    images = cached_property(lambda self: self._whole("images"))
    sentences = cached_property(lambda self: self._whole("sentences"))
    documents = cached_property(lambda self: self._whole("documents"))
    boxes = cached_property(lambda self: self._whole("boxes"))

    def rejects(self) -> Iterator[dict[str, Any]]:
        """{file, row, what, reason} of everything that was left out, one after another."""
        path = self.folder / REJECTS
        _require_whole(path, self.summary["files"][REJECTS])
        return read_rejects(path)

    @cached_property
    def names_digest(self) -> str:
        """A digest of the paths and members of all images, for results that are matched with images by their names.
        The fingerprints of a shard do not depend on names, and a name may be ambiguous because of another shard."""
        return _table_digest(self.images.select(["path", "member"]))

    @cached_property
    def splits(self) -> np.ndarray:
        """(n_images,) object, the split of every image."""
        return self._by_shard(self.shard_splits, object)

    @cached_property
    def sentence_images(self) -> np.ndarray:
        """(n_sentences,) int64, the ascending image_id of every sentence."""
        return self._by_shard(self.owners, np.int64)

    def _by_shard(self, read: Callable[[int], np.ndarray], dtype: type) -> np.ndarray:
        return np.concatenate([np.empty(0, dtype), *(read(number) for number in range(self.n_shards))])

    def shard_splits(self, number: int) -> np.ndarray:
        """(n,) object, the split of each image of a shard; equal ones are one string."""
        found = self.table("images", number)["split"].combine_chunks().dictionary_encode()
        return np.array(found.dictionary.to_pylist(), dtype=object)[found.indices.to_numpy()]

    def owners(self, number: int) -> np.ndarray:
        """(m,) int64, the ascending image_id of each sentence of a shard."""
        return self.table("sentences", number)["image_id"].to_numpy()

    def texts(self, number: int) -> list[str]:
        """The sentences of a shard."""
        return self.table("sentences", number)["text"].to_pylist()

    def texts_of(self, split: str, shards: range | None = None) -> Iterator[str]:
        """The sentences of a split in some shards, or all, read by shard."""
        for number in range(self.n_shards) if shards is None else shards:
            in_split = self.shard_splits(number) == split
            own = in_split[self.owners(number) - number * self.shard_size]
            yield from self.table("sentences", number)["text"].filter(own).to_pylist()

    def rows(self, name: str, numbers: np.ndarray | Sequence[int]) -> pa.Table:
        """Return some rows of a table of TABLES by their numbers in ascending order; reads only their shards.

        Raises IndexError for a number without a row, and for numbers in another order.
        """
        numbers, bounds = np.asarray(numbers, np.int64), self.bounds(name)
        if len(numbers) and not (numbers[0] >= 0 and numbers[-1] < bounds[-1] and (np.diff(numbers) >= 0).all()):
            raise IndexError(f"{name} has {bounds[-1]} rows, from 0; ask for some of them in ascending order")
        cuts = np.searchsorted(numbers, bounds)
        found = [
            self.table(name, shard).take(numbers[cuts[shard] : cuts[shard + 1]] - bounds[shard])
            for shard in np.flatnonzero(np.diff(cuts)).tolist()
        ]
        return pa.concat_tables(found) if found else TABLES[name].empty_table()

    def pick(self, image_id: np.ndarray | Sequence[int]) -> list[dict[str, Any]]:
        """The rows of some images; reads only their shards."""
        image_id = np.asarray(image_id, np.int64)
        distinct, places = np.unique(image_id, return_inverse=True)
        rows = self.rows("images", distinct).to_pylist()
        return [rows[place] for place in places.tolist()]

    def of_image(self, name: str, image_id: int) -> pa.Table:
        """The rows of an image in a table of TABLES; reads only its shard."""
        table = self.table(name, image_id // self.shard_size)
        first, last = np.searchsorted(table["image_id"].to_numpy(), [image_id, image_id + 1]).tolist()
        return table.slice(first, last - first)

    def bounds(self, name: str) -> np.ndarray:
        """(n_shards + 1,) the numbers of the shards' first rows in a table of TABLES, and of all rows."""
        if name == "images":
            return np.minimum(np.arange(self.n_shards + 1) * self.shard_size, self.n_images)
        if name not in self._bounds:
            ends = (self._record(number)["rows"][name][1] for number in range(self.n_shards))
            self._bounds[name] = np.fromiter(chain([0], ends), np.int64, 1 + self.n_shards)
        return self._bounds[name]

    def shard(self, number: int) -> ShardRows:
        """The rows of shard `number`."""
        record = self._record(number)
        rows: Mapping[str, list[int]] = record["rows"]
        digests = {name: record[name] for name in FINGERPRINTS}
        first_image, last_image = rows["images"]
        first_sentence, last_sentence = rows["sentences"]
        first_document, _ = rows["documents"]
        return ShardRows(number, first_image, last_image, first_sentence, last_sentence, first_document, digests)

    def span(self, shards: range) -> ShardRows:
        """Return the rows of consecutive shards, with the number and the fingerprints of the first."""
        first, last = self.shard(shards[0]), self.shard(shards[-1])
        return replace(first, last_image=last.last_image, last_sentence=last.last_sentence)

    def _record(self, number: int) -> Mapping[str, Any]:
        """The commit of a shard."""
        path = shard_commit(self.folder, number)
        _require_whole(path, self.summary["files"][f"shards/{path.name}"])
        return read_commit(path).value


def _require_whole(path: Path, about: FileSum) -> None:
    if reason := file_fault(path, about):
        raise IntegrityError(f"{path} is {reason}; run ingest again")


def reject_lines(rejects: Iterable[Mapping[str, Json]]) -> Iterator[bytes]:
    """The lines of `rejects.jsonl`: what was left out, {file, row, what, reason}; names that are not UTF-8 survive as
    escapes."""
    return (canonical_json(dict(reject)) + b"\n" for reject in rejects)


def read_rejects(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rejects that are listed in the file `path`."""
    with open(path, "rb") as lines:
        yield from map(json.loads, lines)


def write_rejects(path: Path, rejects: Iterable[Mapping[str, Json]]) -> None:
    publish_bytes(path, reject_lines(rejects))


# --- what `ingest` writes


def write_manifest(
    folder: Path,
    root: Path,
    parts: Iterable[Mapping[str, pa.Table]],
    rejects: Iterable[Mapping[str, Json]],
    counts: Mapping[str, Mapping[str, int]],
    shard_size: int,
    left_out: Mapping[str, int] = MappingProxyType({}),
    provenance: Provenance | None = None,
    warnings: Sequence[str] = (),
) -> None:
    """Publish a manifest, all at once; `manifest.json` comes last and is its commit. Shards that are there stay.

    Each of `parts` has the tables of TABLES for the next images, `images` with the user's own columns after ours;
    `rejects` has one mapping {file, row, what, reason} for each thing left out; `counts` has {given, kept, rejected,
    duplicate} of each table, and of files how many are `left_out`, too, for which `left_out` has the reasons. The
    `warnings` are repeated at the end of a run. Raises IntegrityError if the counts do not add up.
    """
    for what, count in counts.items():
        fates = count["kept"] + count["rejected"] + count["duplicate"] + count.get("left_out", 0)
        if count["given"] != fates:
            raise IntegrityError(f"counts of {what} are not conserved: {dict(count)}")
    folder, batch, contents, splits = Path(folder), FileBatch(), [], Counter()
    gone: list[Path] = []  # files that an earlier manifest may have left of tables in which a shard has no rows
    provenance = provenance or Provenance(folder.parent, "", 0)
    with batch.discarded_on_error():
        files = {REJECTS: batch.add(folder / REJECTS, reject_lines(rejects))}
        for number, (rows, tables) in enumerate(divide(parts, shard_size)):
            fingerprints = shard_fingerprints(tables)
            contents.append(fingerprints["content"])
            splits.update(tables["images"]["split"].to_pylist())
            path = shard_commit(folder, number)
            record = {"shard": number, "rows": rows, **fingerprints}
            files[f"shards/{path.name}"] = _add_shard(batch, path, record, tables, provenance.root)
            empty = (name for name, table in tables.items() if not table.num_rows)
            gone += [path.with_name(table_file(number, name)) for name in empty]
        value = {
            "fingerprint": fingerprint("manifest", VERSION, [shard_size, *contents]),
            "version": VERSION,
            "root": str(root),
            "shard_size": shard_size,
            "shards": len(contents),
            "contents": contents,
            "counts": {what: dict(count) for what, count in counts.items()},
            "left_out": dict(left_out),
            "warnings": list(warnings),
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
    record: Mapping[str, Json],
    tables: Mapping[str, pa.Table],
    root: Path,
) -> FileSum:
    """Add the shard whose commit is `path`, unless it is there, and return what vouches for that commit."""
    before = _shard(path)
    if before is not None and before.value.get("content") == record["content"]:
        return describe_file(path)
    files = {
        (file := table_file(int(path.stem), name)): batch.add(path.with_name(file), to_parquet(table))
        for name, table in tables.items()
        if table.num_rows
    }
    commit = seal(path, record, files, Provenance(root, "", 0))
    return batch.add(path, to_json(commit.value), commit=True)


def _shard(path: Path) -> Commit | None:
    """The commit of a shard that is whole; None where there is none."""
    try:
        return open_commit(path) if is_regular(path) else None
    except IntegrityError:
        return None


def divide(parts: Iterable[Mapping[str, pa.Table]], shard_size: int) -> Iterator[tuple[dict[str, list[int]], dict]]:
    """Yield for each shard the first and last rows in each of TABLES, and the tables of these rows."""
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
    """Return the FINGERPRINTS of one shard's tables, and `content`, the fingerprint of all columns of all tables."""
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

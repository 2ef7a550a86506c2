"""The manifest: tables of all images, captions, documents (title, tags, description) and boxes of a run.

The order of the rows is the same in all artefacts of the run. `image_id` counts the images from 0. `sentence_id` counts
the captions from 0, in the order of their images. Shard k contains the images [k * shard_size, (k + 1) * shard_size)
and the rows of the other tables that belong to these images. The files of shard 0 are `shards/00000.images.parquet`,
`shards/00000.sentences.parquet` and so on, one file for each table in which the shard has rows. The commit record of a
shard, `shards/00000.json`, contains the range of the shard's rows in each table, and fingerprints of the content of
these rows. If images are added at the end, the earlier shards and the artefacts of these shards therefore stay valid.

`manifest.json` is written last. It vouches for the commit records of the shards and for `rejects.jsonl`. A job reads
only the tables of its own shards.
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

from pipeline.compute.mapreduce import split_into_chunks
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
from pipeline.storage.files import REMEDY, is_regular, read_bytes
from pipeline.storage.json_files import Json, canonical_json, fingerprint, to_json
from pipeline.storage.tables import PackedTable, to_parquet

VERSION = 3
IMAGES = pa.schema(
    [
        ("image_id", pa.int64()),
        ("path", pa.string()),  # relative to the data root, with forward slashes
        ("member", pa.string()),  # the name inside a tar shard or a Parquet file
        ("offset", pa.int64()),  # the first byte of the member in the tar shard, or the row in the Parquet file
        ("size", pa.int64()),  # the number of bytes of the member in the tar shard, and null in a Parquet file
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
"""Keys of the fingerprints in the commit record of a shard. `shard_fingerprints` computes them."""
REJECTS = "rejects.jsonl"
DIGEST_ROWS = 1 << 16
"""Number of rows that are converted to Python objects together when a table is hashed."""
TABLES = {"images": IMAGES, "sentences": SENTENCES, "documents": DOCUMENTS, "boxes": BOXES}


def shard_commit(folder: Path, number: int) -> Path:
    """Return the path of the commit record of the shard `number` of the manifest in `folder`."""
    return Path(folder) / "shards" / f"{number:05d}.json"


def table_file(number: int, name: str) -> str:
    """Return the name of the file that contains the rows of the table `name` in the shard `number`."""
    return f"{number:05d}.{name}.parquet"


@dataclass(frozen=True)
class ShardRows:
    """The rows of the shard `number` in all tables of the manifest.

    The shard has the image ids [first_image, last_image) and the caption ids [first_sentence, last_sentence). Its
    documents begin with the row `first_document`. `fingerprints` has its fingerprints by the names in FINGERPRINTS.
    """

    number: int
    first_image: int
    last_image: int
    first_sentence: int
    last_sentence: int
    first_document: int
    fingerprints: Mapping[str, str]


class Manifest:
    """A published manifest, whose tables are read when they are first used.

    `folder` is the folder of the manifest, `summary` the content of `manifest.json`, and `root` the folder of the
    photos. `table` reads the rows of one shard. The properties `images`, `sentences`, `documents` and `boxes` read the
    rows of all shards, and keep them in memory. Before a table or the splits are read, `require` is called with the
    name of the table or with `splits`, and may raise an error.
    """

    def __init__(self, folder: Path, require: Callable[[str], None] = lambda name: None) -> None:
        self.folder = Path(folder)
        self._require = require
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
        """The chunks, in order. A chunk is a range of successive shards whose moments are summed in one file."""
        return split_into_chunks(self.n_shards, self.shard_size)

    def table(self, name: str, number: int, column: str | None = None) -> pa.Table:
        """Return the rows of the shard `number` in the table `name`, which is a key of TABLES.

        The result is empty if the shard has no rows in this table. With `column`, only this column is read from the
        file. For each table, the rows that were last read with all columns stay in memory. If the requested rows are in
        memory, all their columns are returned, even with `column`. Raises IntegrityError if a file is damaged or
        belongs to another manifest.
        """
        self._require(name)
        if (held := self._held.get(name)) and held[0] == number:
            return held[1]
        path = self.folder / "shards" / table_file(number, name)
        about = self._record(number)["files"].get(path.name)
        table = TABLES[name].empty_table()
        if about is not None:
            _require_whole(path, about)
            packed = PackedTable(read_bytes(path), path)
            names = packed.schema.names if column is None else [column]
            table = pa.concat_tables([packed.schema.empty_table().select(names), *packed.groups(names)])
        if column is None:
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
        """Yield the rejects of the collection, each with the keys `file`, `row`, `what` (the kind of row that was
        rejected, such as `images`) and `reason`."""
        path = self.folder / REJECTS
        _require_whole(path, self.summary["files"][REJECTS])
        return read_rejects(path)

    @cached_property
    def names_digest(self) -> str:
        """A digest of the paths and members of all images.

        Artefacts depend on this digest if they are made from a user's file that refers to images by name. The
        fingerprints of a shard do not suffice, because they do not depend on names, and because an image of another
        shard may make a name ambiguous.
        """
        return _table_digest(self.images.select(["path", "member"]))

    @cached_property
    def splits(self) -> np.ndarray:
        """The split of each image, as (n_images,) object."""
        return self._by_shard(self.shard_splits, object)

    @cached_property
    def sentence_images(self) -> np.ndarray:
        """The image_id of each caption, as (n_sentences,) int64. The numbers ascend, because captions are in the order
        of their images."""
        return self._by_shard(self.owners, np.int64)

    def _by_shard(self, read: Callable[[int], np.ndarray], dtype: type) -> np.ndarray:
        return np.concatenate([np.empty(0, dtype), *(read(number) for number in range(self.n_shards))])

    def shard_splits(self, number: int) -> np.ndarray:
        """Return the split of each image of a shard, as (n,) object. Equal splits are the same string object."""
        self._require("splits")
        found = self.table("images", number, "split")["split"].combine_chunks().dictionary_encode()
        return np.array(found.dictionary.to_pylist(), dtype=object)[found.indices.to_numpy()]

    def owners(self, number: int) -> np.ndarray:
        """Return the image_id of each caption of a shard, as (m,) int64. The numbers ascend, because captions are in
        the order of their images."""
        return self.table("sentences", number, "image_id")["image_id"].to_numpy()

    def texts(self, number: int) -> list[str]:
        """Return the captions of a shard in the order of the manifest."""
        return self.table("sentences", number)["text"].to_pylist()

    def texts_of(self, split: str, shards: range | None = None) -> Iterator[str]:
        """Yield the captions of a split in the shards with the numbers `shards`, or in all shards if `shards` is None.
        One shard is read at a time. Captions are in the order of the manifest."""
        for number in range(self.n_shards) if shards is None else shards:
            in_split = self.shard_splits(number) == split
            sentences = self.table("sentences", number)
            own = in_split[sentences["image_id"].to_numpy() - number * self.shard_size]
            yield from sentences["text"].filter(own).to_pylist()

    def rows(self, name: str, numbers: np.ndarray | Sequence[int]) -> pa.Table:
        """Return the rows `numbers` of the table `name`, which is a key of TABLES. Other shards are not read.

        Raises IndexError if a number is out of range, or if the numbers are not in ascending order.
        """
        numbers = np.asarray(numbers, np.int64)
        bounds = self.bounds(name)
        if len(numbers) and not (numbers[0] >= 0 and numbers[-1] < bounds[-1] and (np.diff(numbers) >= 0).all()):
            raise IndexError(
                f"The row numbers of {name} must be in ascending order and from 0 to {bounds[-1] - 1}. Sort the numbers"
                " that you pass, and leave out numbers of rows that do not exist."
            )
        cuts = np.searchsorted(numbers, bounds)
        found = [
            self.table(name, shard).take(numbers[cuts[shard] : cuts[shard + 1]] - bounds[shard])
            for shard in np.flatnonzero(np.diff(cuts)).tolist()
        ]
        return pa.concat_tables(found) if found else TABLES[name].empty_table()

    def pick(self, image_id: np.ndarray | Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows of the images with the ids `image_id` in the table of images, as dictionaries in the given
        order. Only the shards of these images are read."""
        image_id = np.asarray(image_id, np.int64)
        distinct, positions = np.unique(image_id, return_inverse=True)
        rows = self.rows("images", distinct).to_pylist()
        return [rows[position] for position in positions.tolist()]

    def of_image(self, name: str, image_id: int) -> pa.Table:
        """Return the rows of an image in the table `name`, which is a key of TABLES. Only the image's shard is read."""
        table = self.table(name, image_id // self.shard_size)
        first, last = np.searchsorted(table["image_id"].to_numpy(), [image_id, image_id + 1]).tolist()
        return table.slice(first, last - first)

    def bounds(self, name: str) -> np.ndarray:
        """Return the number of the first row of each shard in the table `name`, and the number of all rows, as
        (n_shards + 1,)."""
        if name == "images":
            return np.minimum(np.arange(self.n_shards + 1) * self.shard_size, self.n_images)
        if name not in self._bounds:
            ends = (self._record(number)["rows"][name][1] for number in range(self.n_shards))
            self._bounds[name] = np.fromiter(chain([0], ends), np.int64, 1 + self.n_shards)
        return self._bounds[name]

    def shard(self, number: int) -> ShardRows:
        """Return the ranges of the rows of the shard `number`, and its fingerprints."""
        record = self._record(number)
        rows: Mapping[str, list[int]] = record["rows"]
        digests = {name: record[name] for name in FINGERPRINTS}
        first_image, last_image = rows["images"]
        first_sentence, last_sentence = rows["sentences"]
        first_document, _ = rows["documents"]
        return ShardRows(number, first_image, last_image, first_sentence, last_sentence, first_document, digests)

    def span(self, shards: range) -> ShardRows:
        """Return the rows of consecutive shards, at least one, as if they were one shard. The result has the number and
        the fingerprints of the first shard."""
        first = self.shard(shards[0])
        last = self.shard(shards[-1])
        return replace(first, last_image=last.last_image, last_sentence=last.last_sentence)

    def _record(self, number: int) -> Mapping[str, Any]:
        """Return the content of the commit record of a shard. Raises IntegrityError if the record is missing, or is not
        the record for which the manifest vouches."""
        path = shard_commit(self.folder, number)
        _require_whole(path, self.summary["files"][f"shards/{path.name}"])
        return read_commit(path).value


def _require_whole(path: Path, about: FileSum) -> None:
    if reason := file_fault(path, about):
        raise IntegrityError(f"{path} is {reason}. {REMEDY}")


def reject_lines(rejects: Iterable[Mapping[str, Json]]) -> Iterator[bytes]:
    """Yield the lines of `rejects.jsonl`: a JSON object {file, row, what, reason} for each reject.

    All characters outside ASCII are written as escapes, so that names that are not UTF-8 can be written too.
    """
    return (canonical_json(dict(reject)) + b"\n" for reject in rejects)


def read_rejects(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rejects in the file `path`, one per line."""
    with open(path, "rb") as lines:
        yield from map(json.loads, lines)


def write_rejects(path: Path, rejects: Iterable[Mapping[str, Json]]) -> None:
    """Write the file `path` of rejects, one per line as `reject_lines` spells them, without a commit record."""
    publish_bytes(path, reject_lines(rejects))


# --- writing


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
    """Write a manifest. All its files become visible together, and `manifest.json` is its commit record.

    `folder` is the folder of the manifest, and `root` is the folder of the photos, to which the paths are relative. All
    shards but the last have `shard_size` images. Each item of `parts` has the tables of TABLES for the next images. The
    table `images` may have the user's own columns after the columns of IMAGES. `rejects` has one mapping {file, row,
    what, reason} for each reject. `counts` has the numbers {given, kept, rejected, duplicate} of each table and of the
    files. The counts of the files also have `left_out`, the number of ignored files. The argument `left_out` has the
    number of ignored files for each reason. The `warnings` are repeated at the end of a run. A manifest without
    `provenance` does not belong to a run.

    Shards that exist with the same content are not written again, and shards of an earlier, larger manifest are
    removed. Raises IntegrityError if the counts do not add up.
    """
    for what, count in counts.items():
        fates = count["kept"] + count["rejected"] + count["duplicate"] + count.get("left_out", 0)
        if count["given"] != fates:
            raise IntegrityError(
                f"The counts of {what} are inconsistent: {dict(count)}. The number `given` must be the sum of the"
                " others. This is an error in the reader of the collection. Report it."
            )
    folder = Path(folder)
    batch = FileBatch()
    contents = []
    splits = Counter()
    gone: list[Path] = []  # An earlier manifest may have written tables that are empty now.
    provenance = provenance or Provenance(folder.parent, "", 0)
    with batch.discarded_on_error():
        files = {REJECTS: batch.add(folder / REJECTS, reject_lines(rejects))}
        for number, (rows, tables) in enumerate(split_into_shards(parts, shard_size)):
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
    """Add the shard whose commit record is `path` to the batch, unless it exists with the same content.

    `record` has the ranges of the shard's rows and the shard's fingerprints, and `root` is the folder of the run.
    Return the size and the sha256 of the commit record, which `manifest.json` lists.
    """
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
    """Read the commit record of a shard. Return None if the record is missing, or if it or a file of the shard is
    damaged."""
    try:
        return open_commit(path) if is_regular(path) else None
    except IntegrityError:
        return None


def split_into_shards(
    parts: Iterable[Mapping[str, pa.Table]], shard_size: int
) -> Iterator[tuple[dict[str, list[int]], dict]]:
    """Cut tables of successive images into shards of `shard_size` images. The last shard may have fewer images.

    Yields for each shard the range [first, last) of its rows in each table, and the tables of these rows.
    """
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
    """Return the fingerprints of one shard's tables by the names in FINGERPRINTS.

    The key `content` has the fingerprint of all columns of all tables.
    """
    images = tables["images"]
    texts = {name: _table_digest(tables[name]) for name in TABLES if name != "images"}
    return {
        "images": _table_digest(images.select(["image_id", "sha256"])),
        "splits": _table_digest(images.select(["image_id", "split"])),
        **texts,
        "content": fingerprint("content", VERSION, [_table_digest(images), *texts.values()]),
    }


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast each column of `table` that is in `schema` to its type in `schema`. All other columns stay as they are."""
    return table.cast(pa.schema([*schema, *(field for field in table.schema if field.name not in schema.names)]))


def _table_digest(table: pa.Table) -> str:
    """Hash the values of a table, and the types of the user's own columns.

    The hash does not depend on the layout in memory. It is computed from blocks of DIGEST_ROWS rows, because Python
    objects need much memory.
    """
    ours = {field for schema in TABLES.values() for field in schema}
    columns = [field.name if field in ours else [field.name, str(field.type)] for field in table.schema]
    for at, field in enumerate(table.schema):
        if pa.types.is_temporal(field.type):  # JSON has no dates.
            table = table.set_column(at, field.name, table[at].cast(pa.string()))
    parts = (table.slice(start, DIGEST_ROWS).to_pydict() for start in range(0, table.num_rows, DIGEST_ROWS))
    return fingerprint("table", VERSION, [columns, *(fingerprint("rows", VERSION, p) for p in parts)])

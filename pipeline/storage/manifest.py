"""The manifest: which images, sentences and documents a run is made of. Its row order holds everywhere.

`image_id` counts from 0 and is the row in `images.parquet`; `sentence_id` likewise, ordered by image. Shard k holds the
images [k * shard_size, (k + 1) * shard_size) and their sentences. Each shard has its own fingerprints, in
`shards/00000.json`, so images added at the end leave the earlier shards, and whatever was made from them, valid.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import CHECK, publish, read_json, to_json
from pipeline.storage.batch import FileBatch, is_regular
from pipeline.storage.fingerprint import fingerprint
from pipeline.storage.forms import ManifestFile, ManifestShard
from pipeline.storage.reading import read_bytes
from pipeline.storage.records import require_form
from pipeline.storage.rejects import from_lines, to_lines
from pipeline.storage.tables import read_table, require_columns, to_parquet

VERSION = 3
DIGEST_ROWS = 1 << 16
IMAGES = pa.schema(
    [
        ("image_id", pa.int64()),
        ("path", pa.string()),  # relative to the data root, with forward slashes
        ("member", pa.string()),  # the name inside a tar shard, else null
        ("offset", pa.int64()),  # of the member's bytes in the shard; else null
        ("size", pa.int64()),  # the number of these bytes
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
SHARD_FILE = re.compile(r"\d{5,}\.json")  # names of the files in shards/
FINGERPRINTS = ("images", "splits", "sentences", "documents", "boxes")
"""Contents with a fingerprint in `shards/<number>.json`."""
TABLES = {"images": IMAGES, "sentences": SENTENCES, "documents": DOCUMENTS, "boxes": BOXES}


def write_manifest(
    folder: Path,
    root: Path,
    tables: Mapping[str, pa.Table],
    rejects: Sequence[Mapping[str, Any]],
    counts: Mapping[str, Mapping[str, int]],
    shard_size: int,
) -> None:
    """Publish a manifest, all at once; `manifest.json` comes last and is its commit.

    `tables` are those of TABLES, `images` with the user's own columns after ours; `rejects` has one mapping {file, row,
    what, reason} for each thing left out; `counts` has {given, kept, rejected, duplicate} of each table. Raises
    IntegrityError if these do not add up.
    """
    for what, count in counts.items():
        if count["given"] != count["kept"] + count["rejected"] + count["duplicate"]:
            raise IntegrityError(f"counts of {what} are not conserved: {dict(count)}")
    folder = Path(folder)
    tables = {name: _cast(tables[name], schema) for name, schema in TABLES.items()}
    digest = fingerprint("manifest", VERSION, {name: _table_digest(table) for name, table in tables.items()})
    batch = FileBatch()
    for name, table in tables.items():
        about = {"kind": f"manifest-{name}", "rows": table.num_rows, "fingerprint": digest}
        publish(folder / f"{name}.parquet", to_parquet(table), **about, batch=batch)
    rejected = batch.add(folder / "rejects.jsonl", to_lines(rejects))
    shards = shard_fingerprints(tables, shard_size)
    for number, value in enumerate(shards):
        path = folder / "shards" / f"{number:05d}.json"
        if _own_shard(path) != value:
            batch.add(path, to_json(value))
    value = {
        "fingerprint": digest,
        "version": VERSION,
        "root": str(root),
        "shard_size": shard_size,
        "shards": len(shards),
        "counts": {what: dict(count) for what, count in counts.items()},
        "splits": dict(sorted(Counter(tables["images"]["split"].to_pylist()).items())),
        "rejects": rejected,
    }
    batch.add(folder / "manifest.json", to_json(value), commit=True)
    batch.publish()
    for path in (folder / "shards").glob("*.json"):
        if SHARD_FILE.fullmatch(path.name) and int(path.stem) >= len(shards) and _own_shard(path):
            path.unlink()


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of the schema, and further ones as they are."""
    return table.cast(pa.schema([*schema, *(field for field in table.schema if field.name not in schema.names)]))


def _own_shard(path: Path) -> dict[str, Any]:
    """The content of the JSON file if `write_manifest` wrote it, else nothing."""
    try:
        value = read_json(path) if is_regular(path) else None
    except (IntegrityError, OSError):
        return {}
    own = isinstance(value, dict) and value.keys() == {*ManifestShard.model_fields, CHECK}
    return {name: part for name, part in value.items() if name != CHECK} if own else {}


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


def shard_fingerprints(tables: Mapping[str, pa.Table], shard_size: int) -> list[dict[str, Any]]:
    """The content of `shards/<number>.json` for each shard of a manifest with these tables."""
    images, shards = tables["images"], []
    owners = {name: tables[name]["image_id"].to_numpy() for name in ("sentences", "documents", "boxes")}
    for number, start in enumerate(range(0, images.num_rows, shard_size)):
        rows = images.slice(start, shard_size)
        parts = {"images": rows.select(["image_id", "sha256"]), "splits": rows.select(["image_id", "split"])}
        for name, image_id in owners.items():
            first, last = np.searchsorted(image_id, [start, start + rows.num_rows])
            parts[name] = tables[name].slice(first, last - first)
        shards.append({"shard": number, **{name: _table_digest(part) for name, part in parts.items()}})
    return shards


@dataclass(frozen=True)
class ShardRows:
    """Shard `number` has the image ids [first_image, last_image) and sentence ids [first_sentence, last_sentence)."""

    number: int
    first_image: int
    last_image: int
    first_sentence: int
    last_sentence: int
    fingerprints: Mapping[str, str]


class Manifest:
    """A published manifest, its tables read when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        path = self.folder / "manifest.json"
        self.summary = require_form(read_json(path), ManifestFile, path, "run ingest again", "is not a manifest")
        self.fingerprint: str = self.summary["fingerprint"]
        self.root = Path(self.summary["root"])
        self.shard_size: int = self.summary["shard_size"]
        self.n_shards: int = self.summary["shards"]
        self._shards: dict[int, ShardRows] = {}
        self._records: dict[int, Mapping[str, Any]] = {}
        if "\0" in str(self.root):
            raise IntegrityError(f"{path} names a root that no folder has; run ingest again")

    def _table(self, name: str) -> pa.Table:
        path = self.folder / f"{name}.parquet"
        table, sidecar = read_table(path, f"manifest-{name}")
        if sidecar.fingerprint != self.fingerprint:
            raise IntegrityError(f"{path} belongs to another manifest; run ingest again")
        require_columns(path, table.schema, TABLES[name])
        if name == "images" and -(-table.num_rows // self.shard_size) != self.n_shards:
            raise IntegrityError(f"{path} has {table.num_rows} rows, not {self.n_shards} shards; run ingest again")
        return table

    images = cached_property(lambda self: self._table("images"))
    sentences = cached_property(lambda self: self._table("sentences"))
    documents = cached_property(lambda self: self._table("documents"))
    boxes = cached_property(lambda self: self._table("boxes"))

    @cached_property
    def rejects(self) -> list[dict[str, Any]]:
        """{file, row, what, reason} of everything that was left out."""
        path = self.folder / "rejects.jsonl"
        data = read_bytes(path, "run ingest again", "does not exist although its manifest does; run ingest again")
        if hashlib.sha256(data).hexdigest() != self.summary["rejects"]:
            raise IntegrityError(f"{path} is not what its manifest says: it was changed or damaged; run ingest again")
        return from_lines(data, path)

    @cached_property
    def splits(self) -> np.ndarray:
        """(n_images,) the split of every image."""
        return np.asarray(self.images["split"].to_pylist(), dtype=object)

    @cached_property
    def sentence_images(self) -> np.ndarray:
        """(n_sentences,) int64, the ascending image_id of every sentence."""
        return self.sentences["image_id"].to_numpy()

    @property
    def training_texts(self) -> list[str]:
        """The sentences of the train split."""
        return self.sentences.filter((self.splits == "train")[self.sentence_images])["text"].to_pylist()

    def texts(self, rows: ShardRows) -> list[str]:
        return self.sentences["text"][rows.first_sentence : rows.last_sentence].to_pylist()

    def digest(self, numbers: range, columns: Sequence[str]) -> str:
        """A hash of the fingerprints in `columns` for the shards `numbers`; reads only their JSON files."""
        return fingerprint("columns", VERSION, [[self._record(number)[name] for name in columns] for number in numbers])

    def shard(self, number: int) -> ShardRows:
        """The rows of shard `number`. Raises IntegrityError if there is no such shard."""
        if not 0 <= number < self.n_shards:
            raise IntegrityError(f"{self.folder} has shards 0 to {self.n_shards - 1}, not {number}")
        if number not in self._shards:
            first = number * self.shard_size
            last = min(first + self.shard_size, self.images.num_rows)
            start, stop = np.searchsorted(self.sentence_images, [first, last]).tolist()
            digests = {name: self._record(number)[name] for name in FINGERPRINTS}
            self._shards[number] = ShardRows(number, first, last, start, stop, digests)
        return self._shards[number]

    def _record(self, number: int) -> Mapping[str, Any]:
        """The content of a shard's JSON file."""
        if number not in self._records:
            path = self.folder / "shards" / f"{number:05d}.json"
            value = require_form(read_json(path), ManifestShard, path, "run ingest again")
            if value["shard"] != number:
                raise IntegrityError(f"{path} is of shard {value['shard']}: it was moved or copied; run ingest again")
            self._records[number] = value
        return self._records[number]

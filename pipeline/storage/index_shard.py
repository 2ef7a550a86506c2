"""An index shard: a folder with all that a program needs to search some photos, without the run.

    images.faiss       sentences.faiss         FAISS indexes; position i is row i of the table. Without sentences there
                                               is no index of them, and their table is empty
    images.parquet     sentences.parquet       the rows: id, path, split; id, image, text
    images.tradeoff.json, ...                  how candidate indexes compared, if one was chosen among several
    model.safetensors  model.json              the model that embeds queries
    text_encoders/<name>/model.safetensors + .json  turn sentences into vectors
    vocabulary.json                            the words of models that read tokens or trees
    encoders/<name>/model.safetensors + .json  turns images into features
    background.safetensors                     what scores are compared with (pipeline.index.calibration)
    card.json                                  size and sha256 of every file, and what was measured

An index `index/<model>/` is one such folder. An index of many millions of photos is several of them, each of some
shards of the run, in `index/<model>/00/` and so on: see pipeline.storage.stored_index.

A row keeps its meaning forever: if its image or sentence is removed, only the ids stay in it, and `count` in the card
is smaller than the table.

The card is written last and removed first: a shard without it does not exist. All files are written under temporary
names before the first is renamed, so an older shard in the folder stays intact until its successor is complete.

A multi-vector model (the card's `kind` is `fragments`) has, in place of the two indexes,

    regions.faiss      words.faiss             position i is vector i, row after row, without gaps: removed rows have
                                               no vectors
    fragments.safetensors                      the rows of the vectors: `image_offsets`, `sentence_offsets`; the
                                               regions' `boxes`; `image_globals` and `sentence_globals`, if any
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Unpack

import numpy as np
import pyarrow as pa
import safetensors.numpy

from pipeline.compute.multivectors import SIDES, MultiVectors, read_outline
from pipeline.errors import IntegrityError, JointspaceError
from pipeline.storage.batch import FileBatch, FileSum
from pipeline.storage.card import CARD, Card, CardFacts, MeasuredIndexes, Modality, make_card, read_card
from pipeline.storage.commit import read_commit, read_record
from pipeline.storage.files import inside, map_hashed, map_verified, read_bytes, refusing
from pipeline.storage.index_folder import (
    CHANGING,
    COLUMNS,
    IDS,
    NUMBER,
    PLACES,
    listed,
    remove_files,
    require_distinct,
    require_plain_rows,
    several,
    shards_in,
)
from pipeline.storage.json_files import Json, JsonObject, require_form, to_json
from pipeline.storage.parameters import ENCODER, MODEL, TEXT_ENCODER, Parameters, load_tensors, read_parameters
from pipeline.storage.records import JointVocabulary, VocabularyFile
from pipeline.storage.tables import PackedTable, require_columns, to_parquet

OUTLINES = "fragments.safetensors"
RECORDS = ("model.json", "encoders/*/model.json", "text_encoders/*/model.json")
"""Patterns of the commit records of the model and of the encoders."""
MODALITIES: tuple[Modality, ...] = ("images", "sentences")
REBUILD = "run build-index again"


class IndexWriter:
    """Writes an index shard file by file, with one file in memory at a time; `commit` completes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.files: dict[str, FileSum] = {}
        self._batch = FileBatch()

    def add(self, name: str, data: bytes | memoryview) -> None:
        """Write the file `name`, a path with forward slashes. Raises IntegrityError as `inside` does."""
        self.files[name] = self._batch.add(self._path(name), data)

    def add_table(self, name: str, table: pa.Table) -> None:
        self.add(name, to_parquet(table))

    def add_json(self, name: str, value: Json) -> None:
        self.add(name, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False).encode())

    def add_outlines(self, outlines: Mapping[str, MultiVectors]) -> None:
        """Write which vectors belong to which `images` and `sentences` of a multi-vector model."""
        arrays = {"boxes": outlines["images"].boxes}
        for modality, one in SIDES.items():
            arrays |= {f"{one}_offsets": outlines[modality].offsets, f"{one}_globals": outlines[modality].globals}
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}
        self.add(OUTLINES, safetensors.numpy.save(arrays))

    def add_parameters(self, source: Path, prefix: str = "") -> None:
        """Copy a model or an encoder from the folder `source`: its commit record and all files that this lists."""
        commit = Path(source) / "model.json"
        for name in (*read_commit(commit).files, commit.name):
            self.add(prefix + name, read_bytes(inside(Path(source), name, commit)))

    def link(self, shard: "IndexShard", but: Collection[str] = ()) -> None:
        """Add all files of another shard except `but`, without reading them where the file system has links.

        Readers check the files against the card. The files of a shard in the same folder are there already. Raises
        JointspaceError if another process has changed that shard since it was opened.
        """
        files = {name: shard.about(name) for name in shard.card.files if name not in but}
        if shard.folder == self.folder:
            self.files |= files
            return
        with self._batch.discarded_on_error():
            for name, about in files.items():
                try:
                    self._batch.link(self._path(name), inside(shard.folder, name, shard.folder / CARD))
                    self.files[name] = about
                except OSError:
                    self.add(name, shard.read(name))
            if read_card(shard.folder) != shard.card:
                raise JointspaceError(f"{shard.folder} was changed while it was copied; run the same command again")

    def commit(
        self,
        measured: MeasuredIndexes | None = None,
        source: Card | None = None,
        but: Collection[str] = (),
        **facts: Unpack[CardFacts],
    ) -> None:
        """Write the card, as `make_card` constructs it, and publish all files in place of an older shard.

        No file of the older shard stays; all other files do. Raises IntegrityError for a link in place of a file.
        """
        card = make_card(self.folder / CARD, self.files, measured, source, but, **facts)
        former = set(listed(self.folder))
        # Snakemake has removed the card of an older shard, but not the commit records of its model and encoders.
        for record in (path for pattern in RECORDS for path in self.folder.glob(pattern)):
            with suppress(IntegrityError):  # a file of the user, which stays
                names = (*read_commit(record).files, record.name, *(CHANGING if record.parent == self.folder else ()))
                former |= {(record.parent / name).relative_to(self.folder).as_posix() for name in names}
        self._batch.add(self._path(CARD), to_json(card.to_json()), commit=True)
        self._batch.publish()
        remove_files(self.folder, former - self.files.keys())

    def _path(self, name: str) -> Path:
        return inside(self.folder, name, self.folder / CARD)


class IndexShard:
    """A published index shard. Each file is checked against the card before it is parsed, on first use.

    A folder that holds one index shard, such as the folder of a run, stands for this shard. With `skip_verified`, a
    large file that was checked before is not hashed again unless it was written or touched since. Raises IntegrityError
    naming a file that is missing or changed, and for a card that names a file outside the folder.
    """

    def __init__(self, folder: Path, skip_verified: bool = False) -> None:
        self._skip_verified = skip_verified
        self.folder, *others = shards_in(Path(folder))
        if others:
            raise several(Path(folder), [self.folder, *others])
        self.card: Card = read_card(self.folder)

    @property
    def model_digest(self) -> str:
        """The digest of the model's files. Raises IntegrityError if the card does not have it."""
        if (digest := self.card.inputs.get("model")) is None:
            raise IntegrityError(f"{self.folder / CARD} has no inputs.model; {REBUILD}")
        return digest

    def read(self, name: str) -> bytes:
        return bytes(self.map(name))

    def map(self, name: str) -> memoryview:
        """Return a memory map of the file `name`, whose bytes are as the card says."""
        return self._map(name, self._skip_verified)

    def _map(self, name: str, skip_verified: bool) -> memoryview:
        path = self._path(name)
        about = self.about(name)
        with refusing(path, REBUILD, f"is missing although its card lists it; {REBUILD}"):
            data, sha256 = map_verified(path, about["sha256"]) if skip_verified else map_hashed(path)
        if (len(data), sha256) != (about["bytes"], about["sha256"]):
            raise IntegrityError(f"{path} is not what its card says: it was changed or damaged; {REBUILD}")
        return data

    def about(self, name: str) -> FileSum:
        """Return the size and the sha256 of a file, as the card has them."""
        if name not in self.card.files:
            raise IntegrityError(f"{self.folder / CARD} lists no {name}; {REBUILD}")
        file = self.card.files[name]
        return {"bytes": file.bytes, "sha256": file.sha256}

    def check(self) -> None:
        """Hash all files. Raises IntegrityError for a file that is missing or changed."""
        for name in self.card.files:
            self._map(name, skip_verified=False)

    def index(self, name: str) -> memoryview:
        """Map the bytes of a FAISS index."""
        return self.map(f"{name}.faiss")

    def outline(self, modality: Modality) -> MultiVectors | None:
        """Return which vectors of the index belong to which row of the table; None unless the model is multi-vector.

        Raises IntegrityError if they do not fit the table or the index.
        """
        if self.card.kind == "global":
            return None
        rows = self.packed_table(modality).num_rows
        card = self.card.index_of(modality)
        total = card.count if card else None
        return read_outline(self.folder / OUTLINES, self.arrays(OUTLINES), SIDES[modality], rows, total)

    def table(self, modality: Modality) -> pa.Table:
        """Return all rows, whose ids are distinct. Raises IntegrityError as `packed_table` does."""
        packed = self.packed_table(modality)
        table = packed.unpack()
        require_distinct(packed.path, table, NUMBER[modality])
        return table

    def check_rows(self) -> None:
        """Raises IntegrityError for a row that `table` would refuse, whether anybody asks for it or not."""
        for modality in MODALITIES:
            packed = self.packed_table(modality)
            rows = packed.groups([name for name in packed.schema.names if name in (*IDS, *PLACES)])
            ids = [group.select([NUMBER[modality]]) for group in rows]
            if ids:
                require_distinct(packed.path, pa.concat_tables(ids), NUMBER[modality])

    def packed_table(self, modality: Modality) -> PackedTable:
        """Open the same table, whose rows are unpacked on request and checked by `require_plain_rows` as they are
        read."""
        name = f"{modality}.parquet"
        path = self.folder / name
        table = PackedTable(self.map(name), path, partial(require_plain_rows, path))
        require_columns(table.path, table.schema, COLUMNS[modality], REBUILD)
        return table

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        return load_tensors(self.read(name), self.folder / name, REBUILD)

    def vocabulary(self) -> JsonObject:
        """Read the vocabulary of a model that reads words."""
        self.read("vocabulary.json")
        path = self.folder / "vocabulary.json"
        value = read_record(path, anywhere=True)
        return require_form(value, JointVocabulary if "views" in value else VocabularyFile, path)

    def model(self) -> Parameters:
        """Read the model that embeds queries."""
        return self._parameters("", MODEL)

    def encoder(self, name: str) -> Parameters:
        """Read an image encoder."""
        return self._parameters(f"encoders/{name}/", ENCODER)

    def text_encoder(self, name: str) -> Parameters:
        """Read a text encoder."""
        return self._parameters(f"text_encoders/{name}/", TEXT_ENCODER)

    def _parameters(self, prefix: str, kind: str) -> Parameters:
        self.read(prefix + "model.json")  # which in turn vouches for the tensors
        return read_parameters(self._path(f"{prefix}model.safetensors"), kind, anywhere=True)

    def _path(self, name: str) -> Path:
        return inside(self.folder, name, self.folder / CARD)


def forget(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Return `table` with only ids left in `rows` (k,)."""
    gone = np.zeros(table.num_rows, bool)
    gone[rows] = True
    kept = pa.array(np.arange(table.num_rows), mask=gone)
    columns = {name: table[name] if name in NUMBER.values() else table[name].take(kept) for name in table.column_names}
    return pa.table(columns)


def hide(table: pa.Table, image_ids: Sequence[int]) -> pa.Table:
    """Return `table` with only ids left in the rows of these images and of their sentences."""
    return forget(table, np.flatnonzero(np.isin(table["image_id"], image_ids))) if image_ids else table

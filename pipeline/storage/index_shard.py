"""An index shard: a folder with all files that a program needs to search some photos without the run.

    images.faiss       sentences.faiss         FAISS indexes, in which the vector with the id i belongs to row i of the
                                               table. If there are no captions, the second index is missing
    images.parquet     sentences.parquet       tables of the images (id, path, split) and captions (id, image, text).
                                               The second table may be empty
    images.tradeoff.json, ...                  measurements of candidate indexes, if the index was chosen among several
    model.safetensors  model.json              the model that embeds queries
    text_encoders/<name>/model.safetensors + .json  text encoders, which turn captions into vectors
    vocabulary.json                            the words of models that read tokens or trees
    encoders/<name>/model.safetensors + .json  image encoders, which turn images into features
    background.safetensors                     vectors with which scores are compared (pipeline.index.calibration)
    card.json                                  the size and sha256 of all other files, and the measurements

An index `index/<model>/` is usually one such folder. An index of many millions of photos has several of them, in
`index/<model>/00/` and so on, each for some shards of the run (see pipeline.storage.stored_index).

Row numbers never change. If an image or a caption is removed, its row stays with only its ids, and `count` on the card
is smaller than the number of rows.

The card is written last and removed first, because a shard without a card does not exist. All files are written under
temporary names before the first of them is renamed, so an older shard in the folder stays intact until the new shard is
complete.

A shard of a multi-vector model (`kind` on its card is `fragments`) has these files in place of the two indexes:

    regions.faiss      words.faiss             the vectors of the regions and words, in the order of the rows of the
                                               tables, with ids from 0 without gaps. Removed rows have no vectors
    fragments.safetensors                      the numbers that say which vectors belong to which row (`image_offsets`,
                                               `sentence_offsets`), the `boxes` of the regions, and `image_globals` and
                                               `sentence_globals` if the model has global vectors
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
from pipeline.storage.batch import FileBatch, FileSum, Writer
from pipeline.storage.card import CARD, Card, CardFacts, MeasuredIndexes, Modality, make_card, read_card
from pipeline.storage.commit import read_commit, read_record
from pipeline.storage.files import REBUILD, inside, map_hashed, map_verified, read_bytes, refusing
from pipeline.storage.index_folder import (
    CHANGING,
    COLUMNS,
    ID_COLUMNS,
    NUMBER,
    PATH_COLUMNS,
    SIZE_COLUMNS,
    listed,
    remove_files,
    require_distinct,
    require_plain_rows,
    several,
    shards_in,
)
from pipeline.storage.json_files import Json, JsonObject, check_form, to_json
from pipeline.storage.parameters import ENCODER, MODEL, TEXT_ENCODER, Parameters, load_tensors, read_parameters
from pipeline.storage.records import JointVocabulary, VocabularyFile
from pipeline.storage.tables import PackedTable, require_columns, to_parquet

OUTLINES = "fragments.safetensors"
RECORDS = ("model.json", "encoders/*/model.json", "text_encoders/*/model.json")
"""Patterns of the commit records of the model and of the encoders in an index shard."""
MODALITIES: tuple[Modality, ...] = ("images", "sentences")


class IndexWriter:
    """Writer of an index shard. It adds one file after another, and `commit` completes the shard."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.files: dict[str, FileSum] = {}
        self._batch = FileBatch()

    def add(self, name: str, data: bytes | memoryview | Writer) -> None:
        """Write the file `name`, which is a path with forward slashes below the folder of the shard.

        The file gets its name when `commit` is called. If `data` is a Writer, its parts are written one after another,
        so that the whole content is never in memory.

        Raises IntegrityError if `name` is not a plain relative name or leads through a link, and JointspaceError if the
        file cannot be written.
        """
        self.files[name] = self._batch.add(self._path(name), data)

    def add_table(self, name: str, table: pa.Table) -> None:
        """Write a table as the Parquet file `name` of the shard. Raises JointspaceError if the file cannot be
        written."""
        self.add(name, to_parquet(table))

    def add_json(self, name: str, value: Json) -> None:
        """Write a value as the JSON file `name`. The file does not get the key `check`, with which jointspace protects
        other JSON files, because the card has the hash of the file."""
        self.add(name, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False).encode())

    def add_outlines(self, outlines: Mapping[str, MultiVectors]) -> None:
        """Write the offsets, boxes and global vectors of the `images` and `sentences` of a multi-vector model into the
        file OUTLINES."""
        arrays = {"boxes": outlines["images"].boxes}
        for modality, one in SIDES.items():
            arrays |= {f"{one}_offsets": outlines[modality].offsets, f"{one}_globals": outlines[modality].globals}
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}
        self.add(OUTLINES, safetensors.numpy.save(arrays))

    def add_parameters(self, source: Path, prefix: str = "") -> None:
        """Copy a model or an encoder from the folder `source`: its commit record and all files that the record lists.

        These files are copied to the subfolder `prefix` of the shard. `prefix` ends with a slash, or is "" for the
        folder of the shard itself.
        """
        commit = Path(source) / "model.json"
        for name in (*read_commit(commit).files, commit.name):
            self.add(prefix + name, read_bytes(inside(Path(source), name, commit)))

    def link(self, shard: "IndexShard", but: Collection[str] = ()) -> None:
        """Add all files on the card of another `shard`, except the names in `but`, as hard links.

        On a file system without hard links, the files are copied. Linked files are not checked, because readers check
        them against the card. If the other shard is in the same folder, its files stay there without a link. Raises
        JointspaceError if another process has changed the other shard since it was opened.
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
                raise JointspaceError(f"{shard.folder} was changed while it was copied. Run the same command again.")

    def commit(
        self,
        measured: MeasuredIndexes | None = None,
        source: Card | None = None,
        but: Collection[str] = (),
        **facts: Unpack[CardFacts],
    ) -> None:
        """Write the card that `make_card` constructs, and publish all files in place of an older shard.

        `measured` describes the FAISS indexes of the shard, and `facts` are further keys of the card. All other keys
        are copied from the card `source` of another shard, except the keys in `but`. The files of the older shard that
        are not part of the new one are removed. Files that do not belong to a shard stay. Raises IntegrityError if one
        of the files is a link, or if the card would have a value that `read_card` does not accept.
        """
        card = make_card(self.folder / CARD, self.files, measured, source, but, **facts)
        former = set(listed(self.folder))
        # Snakemake removes the card of an older shard, and with it the list of its files, before this function is run.
        # The commit records of its model and encoders still list some of these files, and CHANGING lists the others.
        for record in (path for pattern in RECORDS for path in self.folder.glob(pattern)):
            with suppress(IntegrityError):  # A file of the user, which is not a commit record, stays.
                names = (*read_commit(record).files, record.name, *(CHANGING if record.parent == self.folder else ()))
                former |= {(record.parent / name).relative_to(self.folder).as_posix() for name in names}
        self._batch.add(self._path(CARD), to_json(card.to_json()), commit=True)
        self._batch.publish()
        remove_files(self.folder, former - self.files.keys())

    def _path(self, name: str) -> Path:
        return inside(self.folder, name, self.folder / CARD)


class IndexShard:
    """A published index shard. Each file is checked against the card whenever it is read, before it is parsed.

    `folder` is the shard, or a folder that contains exactly one shard, such as the folder of a run. With
    `skip_verified`, a large file that was verified before is not hashed again unless it was written or touched since.
    The constructor reads only the card. It raises IntegrityError if `folder` does not contain exactly one shard, and if
    the card is damaged or names a file outside the folder. Reading a file raises IntegrityError if the file is missing
    or was changed.
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
            raise IntegrityError(f"{self.folder / CARD} has no key inputs.model. {REBUILD}")
        return digest

    def read(self, name: str) -> bytes:
        """Read the file `name` of the shard into memory, after its size and hash were checked.

        Raises IntegrityError if the file is missing, is not on the card, or differs from the card.
        """
        return bytes(self.map(name))

    def map(self, name: str) -> memoryview:
        """Return a memory map of the file `name` after its size and hash were checked.

        Raises IntegrityError if the file is missing, is not on the card, or differs from the card.
        """
        return self._map(name, self._skip_verified)

    def _map(self, name: str, skip_verified: bool) -> memoryview:
        path = self._path(name)
        about = self.about(name)
        with refusing(path, REBUILD, f"is missing, although the card of its index lists it. {REBUILD}"):
            data, sha256 = map_verified(path, about["sha256"]) if skip_verified else map_hashed(path)
        if (len(data), sha256) != (about["bytes"], about["sha256"]):
            raise IntegrityError(
                f"{path} was changed or damaged, because it differs from the card of its index. {REBUILD}"
            )
        return data

    def about(self, name: str) -> FileSum:
        """Return the size and the sha256 that the card lists for the file `name`.

        Raises IntegrityError if the card does not list the file.
        """
        if name not in self.card.files:
            raise IntegrityError(f"{self.folder / CARD} does not list the file {name}. {REBUILD}")
        file = self.card.files[name]
        return {"bytes": file.bytes, "sha256": file.sha256}

    def check(self) -> None:
        """Hash all files on the card, even with `skip_verified`. Raises IntegrityError if a file is missing or was
        changed."""
        for name in self.card.files:
            self._map(name, skip_verified=False)

    def outline(self, modality: Modality) -> MultiVectors | None:
        """Return which vectors of the index belong to which row of the table, as MultiVectors without the vectors.

        Return None if each row has one vector.

        Raises IntegrityError if the offsets do not fit the table or the index.
        """
        if self.card.kind == "global":
            return None
        rows = self.packed_table(modality).num_rows
        card = self.card.index_of(modality)
        total = card.count if card else None
        return read_outline(self.folder / OUTLINES, self.arrays(OUTLINES), SIDES[modality], rows, total, REBUILD)

    def table(self, modality: Modality) -> pa.Table:
        """Read the whole table of a modality.

        Raises IntegrityError if the file is damaged or lacks a column, if a row has an id, a size or a path that
        `require_plain_rows` refuses, and if two rows have the same id.
        """
        packed = self.packed_table(modality)
        table = packed.unpack()
        require_distinct(packed.path, table, NUMBER[modality])
        return table

    def check_rows(self) -> None:
        """Raise IntegrityError if a row of the shard's tables has an id, a size or a path that `require_plain_rows`
        refuses, or if two rows have the same id.

        Only the columns of ids, sizes and paths are read.
        """
        checked = (*ID_COLUMNS, *SIZE_COLUMNS, *PATH_COLUMNS)
        for modality in MODALITIES:
            packed = self.packed_table(modality)
            rows = packed.groups([name for name in packed.schema.names if name in checked])
            ids = [group.select([NUMBER[modality]]) for group in rows]
            if ids:
                require_distinct(packed.path, pa.concat_tables(ids), NUMBER[modality])

    def packed_table(self, modality: Modality) -> PackedTable:
        """Open the table of a modality without unpacking it.

        Rows are unpacked on request, and `require_plain_rows` checks them when they are read. Raises IntegrityError if
        the file is damaged or lacks a column.
        """
        name = f"{modality}.parquet"
        path = self.folder / name
        table = PackedTable(self.map(name), path, partial(require_plain_rows, path))
        require_columns(table.path, table.schema, COLUMNS[modality], REBUILD)
        return table

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Read the arrays in the safetensors file `name`, and return them by name.

        Raises IntegrityError if the file is missing, is not on the card, was changed, or is not a safetensors file.
        """
        return load_tensors(self.read(name), self.folder / name, REBUILD)

    def vocabulary(self) -> JsonObject:
        """Read the vocabulary of a model that reads words, or the vocabularies of an ensemble.

        Raises IntegrityError if the shard has no vocabulary, or if the file is damaged.
        """
        self.read("vocabulary.json")
        path = self.folder / "vocabulary.json"
        value = read_record(path, anywhere=True)
        check_form(value, JointVocabulary if "views" in value else VocabularyFile, path)
        return value

    def model(self) -> Parameters:
        """Read the settings, tensors and details of the model that embeds queries. Raises IntegrityError if they are
        missing or were changed."""
        return self._parameters("", MODEL)

    def encoder(self, name: str) -> Parameters:
        """Read the settings, tensors and details of the image encoder `name` from the shard. Raises IntegrityError if
        they are missing or were changed."""
        return self._parameters(f"encoders/{name}/", ENCODER)

    def text_encoder(self, name: str) -> Parameters:
        """Read the settings, tensors and details of the text encoder `name` from the shard. Raises IntegrityError if
        they are missing or were changed."""
        return self._parameters(f"text_encoders/{name}/", TEXT_ENCODER)

    def _parameters(self, prefix: str, kind: str) -> Parameters:
        self.read(prefix + "model.json")  # This checks the record, which vouches for the tensors.
        return read_parameters(self._path(f"{prefix}model.safetensors"), kind, anywhere=True)

    def _path(self, name: str) -> Path:
        return inside(self.folder, name, self.folder / CARD)


def forget(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Return a copy of `table` in which the rows with the numbers `rows` (k,) are cleared. A cleared row keeps its ids
    and is null in all other columns."""
    gone = np.zeros(table.num_rows, bool)
    gone[rows] = True
    kept = pa.array(np.arange(table.num_rows), mask=gone)
    columns = {name: table[name] if name in NUMBER.values() else table[name].take(kept) for name in table.column_names}
    return pa.table(columns)


def hide(table: pa.Table, image_ids: Sequence[int]) -> pa.Table:
    """Return a table of images or captions in which some rows are cleared (see `forget`): the rows of the images
    `image_ids`, or of the captions of these images."""
    return forget(table, np.flatnonzero(np.isin(table["image_id"], image_ids))) if image_ids else table

"""Changing an index: its current and removed photos, and new versions of its shards.

A revision is a new version of an index shard, without some images and their captions. The old shard stays intact until
the revision is complete.
"""

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipeline.compute.multivectors import MultiVectors
from pipeline.errors import IntegrityError, JointspaceError
from pipeline.foreign.files import read_lines
from pipeline.foreign.image_names import StoredPhoto, escape_line_breaks, listed_name, restore_line_breaks
from pipeline.storage.batch import Writer, new_folder
from pipeline.storage.card import CARD, IndexCard, MeasuredIndexes, Modality
from pipeline.storage.commit import CARRIED
from pipeline.storage.files import is_regular
from pipeline.storage.index_folder import NUMBER, REMOVED, added_to, home_of, indexes_of_run, shards_in
from pipeline.storage.index_shard import MODALITIES, IndexShard, IndexWriter, forget
from pipeline.storage.json_files import fingerprint, require_same
from pipeline.storage.locks import hold
from pipeline.storage.stored_index import StoredIndex, open_index

if TYPE_CHECKING:
    from pipeline.storage.embeddings import Embeddings

DIGEST = re.compile(r"(.*?)(?:\t([0-9a-f]{64}))?", re.DOTALL)
"""Pattern of a line in the list of removed photos: the name of the photo, a tab, and the sha256 of the photo. `add`
recognises a removed photo in another folder by its sha256. Earlier versions did not write the sha256."""
KEY_COLUMNS = {"images": ("path", "sha256"), "sentences": ("text",)}
"""The columns in which a row of an index must equal the row of the manifest with the same id. In a row that was removed
from the index, these columns are null."""


@dataclass(frozen=True)
class ShardSide:
    """The images of an index shard, or its captions: the name and the card of their FAISS index, and their table.

    For a multi-vector model, `outline` says which vectors belong to which row. For other models, it is None.
    """

    modality: Modality
    name: str
    card: IndexCard
    table: pa.Table
    outline: MultiVectors | None

    @property
    def ids(self) -> np.ndarray:
        """The ids (n,) of the images or captions in the rows of the table, as in the manifest."""
        return self.table[NUMBER[self.modality]].to_numpy()

    @property
    def owners(self) -> np.ndarray:
        """The ids (n,) of the images to which the rows belong."""
        return self.table["image_id"].to_numpy()

    @property
    def alive(self) -> np.ndarray:
        """The numbers (k,) of the rows that were not removed from the index."""
        return np.flatnonzero(~is_removed(self.table))

    @property
    def numbers(self) -> np.ndarray:
        """The ids of all vectors in the FAISS index. If each row has one vector, the ids are the numbers of the rows
        that were not removed. With a multi-vector model, the ids are numbers from 0 without gaps."""
        return self.alive if self.outline is None else np.arange(self.outline.offsets[-1])

    def without(self, rows: np.ndarray) -> "ShardSide":
        """Return this side with `rows` (k,) removed: only their ids stay in the table."""
        less = None if self.outline is None else self.outline.without(rows)
        return replace(self, table=forget(self.table, rows), outline=less)


def sides_of(shard: IndexShard) -> list[ShardSide]:
    """Return the images of the shard, and the captions if the shard has a FAISS index of captions."""
    return [
        ShardSide(modality, shard.card.index_name(modality), card, shard.table(modality), shard.outline(modality))
        for modality in MODALITIES
        if (card := shard.card.index_of(modality)) is not None
    ]


def require_numbering(shard: IndexShard, sides: Sequence[ShardSide], embeddings: "Embeddings") -> None:
    """Check that `embeddings` come from the model of `shard`, and that their manifest has the same ids as the shard.

    `sides` are the images and captions of the shard. The images and captions that were not removed must be in the
    manifest, with their ids. Raises IntegrityError if the model or an id differs.
    """
    models = {str(shard.folder): shard.model_digest, str(embeddings.folder): embeddings.model}
    require_same("model", models)
    for side in sides:
        keys = KEY_COLUMNS[side.modality]
        table = getattr(embeddings.manifest, side.modality)
        ids = side.ids[side.alive]
        known = ids.max(initial=-1) < table.num_rows
        if not known or table.select(keys).take(ids) != side.table.select(keys).take(side.alive):
            raise IntegrityError(
                f"{embeddings.manifest.folder} numbers its {side.modality} differently from {shard.folder}. Use the"
                " manifest from which the index was made, or a later manifest of the same run."
            )


@dataclass(frozen=True)
class Change:
    """An index that is being changed.

    `home` is the folder of the index. The new version of a file below `home` is written to the same path below `root`.
    """

    index: StoredIndex
    home: Path
    root: Path

    def folder(self, shard: IndexShard) -> Path:
        """Return the folder to which the new version of a shard is written."""
        return self.root / shard.folder.relative_to(self.home)


@contextmanager
def changing(folder: Path, output: Path | None) -> Iterator[Change]:
    """Open the index in `folder` for a change, which the block makes. If `output` is None, the index is changed in
    place. Otherwise, the change is made in a copy in the new folder `output`.

    The copy has links to the unchanged files, and its folder appears when the block has ended without an error. An
    index that is changed in place is opened after its lock and the locks of its shards and additions are acquired, so
    that the result of the last change is read. Raises JointspaceError if another process holds one of the locks, and
    UsageError if `output` exists.
    """
    home = home_of(shards_in(folder))
    if output is None:
        with hold(home), ExitStack() as locks:
            for shard_folder in sorted({*shards_in(folder), *added_to(home)} - {home}):
                locks.enter_context(hold(shard_folder))
            yield Change(open_index(folder), home, home)
        return
    index = open_index(folder)
    with hold(output), new_folder(output) as root:
        change = Change(index, home, root)
        yield change
        for shard in index.shards:
            if not (change.folder(shard) / CARD).exists():
                link_shard(shard, change.folder(shard))
                if is_regular(shard.folder / REMOVED) and not (change.folder(shard) / REMOVED).exists():
                    shutil.copy(shard.folder / REMOVED, change.folder(shard))


def link_shard(shard: IndexShard, output: Path) -> None:
    """Copy an index shard to the folder `output`, as hard links to its files if the file system supports them.

    The card of the copy has no commit record, because no rule of a run makes the copy again.
    """
    writer = IndexWriter(output)
    writer.link(shard)
    writer.commit(source=shard.card, but=[CARRIED])


def photo_digests(shards: Iterable[IndexShard]) -> set[str]:
    """Return the sha256 of all photos in some index shards. Photos that were removed from a shard are left out."""
    groups = (group for shard in shards for group in shard.packed_table("images").groups(["sha256"]))
    return {digest for group in groups for digest in group["sha256"].to_pylist() if digest}


def photos_of(index: StoredIndex) -> Iterator[StoredPhoto]:
    """Yield the photos of an index that were not removed."""
    for shard, shift in zip(index.shards, index.shifts, strict=True):
        for group in shard.packed_table("images").groups(["image_id", "path", "member", "sha256"]):
            there = group.filter(group["path"].is_valid())
            ids = (there["image_id"].to_numpy() + shift["image_id"]).tolist()
            columns = (there[name].to_pylist() for name in ("path", "member", "sha256"))
            for image_id, path, member, sha256 in zip(ids, *columns, strict=True):
                yield StoredPhoto(image_id, path, member, sha256, shard.card.data_root)


def read_removed(shard: IndexShard) -> dict[str, str]:
    """Read which photos were removed from an index shard, as name -> sha256, or "" for an unknown sha256.

    The result is empty if the shard has no file REMOVED.
    """
    path = shard.folder / REMOVED
    return parse_removed(read_lines(path)) if path.exists() else {}


def parse_removed(lines: Iterable[str]) -> dict[str, str]:
    """Parse the lines of a list of removed photos, as name -> sha256. A missing sha256 is an empty text."""
    pairs = (match.groups("") for line in lines if (match := DIGEST.fullmatch(line)))
    return {restore_line_breaks(name): digest for name, digest in pairs}


def format_removed(removed: Mapping[str, str]) -> str:
    """Format the list of removed photos that `parse_removed` reads."""
    lines = (f"{name}\t{digest}" if digest else name for name, digest in removed.items())
    return "".join(f"{escape_line_breaks(line)}\n" for line in lines)


def removed_photos(shards: Iterable[IndexShard]) -> set[str]:
    """Return the absolute paths and the sha256 of all photos that were removed from some index shards."""
    removed = [(shard.card.data_root, read_removed(shard)) for shard in shards]
    return {text for root, names in removed for name in names for text in (f"{root}/{name}", names[name]) if text}


def were_removed(images: pa.Table, root: Path | str, removed: Set[str]) -> np.ndarray:
    """Return which of n images were removed, as (n,) bool.

    `images` is a table of images below the folder `root`. `removed` has the absolute paths and the sha256 of the
    removed photos, from `removed_photos`. An image counts as removed if its path or its sha256 is in `removed`.
    """
    rows = images.select(["path", "member", "sha256"]).to_pylist()
    return np.array([not removed.isdisjoint((row["sha256"], f"{root}/{listed_name(row)}")) for row in rows], bool)


def hidden_photos(index: StoredIndex, folder: Path) -> list[int]:
    """Return the ids of the photos that `index` still has, although an index of the same run lists them as removed.

    `folder` is the folder of the index. Other indexes of the run that cannot be read are ignored.
    """
    gone: set[str] = set()
    for other in indexes_of_run(folder):
        with suppress(JointspaceError, OSError):  # Another index may be damaged, and this index is served regardless.
            gone |= removed_photos(open_index(other).shards)
    return [photo.image_id for photo in photos_of(index) if photo.whole in gone] if gone else []


class Revision:
    """A new version of an index shard with other FAISS indexes and tables, which is written to the folder `output`.

    Call `put` for each side, and then `commit`. The old shard stays intact until `commit` is called.
    """

    def __init__(self, shard: IndexShard, output: Path) -> None:
        self.shard = shard
        self.writer = IndexWriter(output)
        self.indexes: dict[str, IndexCard] = {}
        self.outlines: dict[str, MultiVectors] = {}

    def put(self, side: ShardSide, write: Writer, factory: str) -> None:
        """Add the FAISS index and the table of `side` to the new version of the shard, which `commit` completes.
        `write` writes the FAISS index, and `factory` is the factory string of its type."""
        self.writer.add(f"{side.name}.faiss", write)
        self.writer.add_table(f"{side.modality}.parquet", side.table)
        size = self.writer.files[f"{side.name}.faiss"]["bytes"]
        changes = {"count": len(side.numbers), "bytes": size, "factory": factory}
        self.indexes[side.name] = side.card.model_copy(update=changes)
        if side.outline is not None:
            self.outlines[side.modality] = side.outline

    def commit(self) -> None:
        """Link all other files of the old shard, and write the card. The old measurements stay on the card."""
        if self.outlines:
            self.writer.add_outlines(self.outlines)
        card = self.shard.card
        changed = {name: about["sha256"] for name, about in self.writer.files.items()}
        self.writer.link(self.shard, but=set(self.writer.files))
        measured = MeasuredIndexes(kind=card.kind).model_copy(update=self.indexes)
        digest = fingerprint("revision", 2, changed, {"bundle": card.fingerprint})
        inputs = {**card.inputs, "bundle": card.fingerprint}
        self.writer.commit(measured, card, inputs=inputs, fingerprint=digest)


def is_removed(table: pa.Table) -> np.ndarray:
    """Return which rows of an index's table were removed, as (n,) bool."""
    key = "sha256" if "sha256" in table.column_names else "text"
    return table[key].is_null().to_numpy()

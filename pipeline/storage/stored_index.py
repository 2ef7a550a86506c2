"""An index of one or more index shards of one model, which are searched as one.

The rows of the shards are numbered through, in the order of the shards, and so are their FAISS indexes. If an earlier
shard has an id of a shard too, all ids of the later shard are raised above the ids of the shards before. Removed rows
keep their ids, so that this does not change the meaning of an id. All else, such as the model, comes from the first
shard.

The index in a folder consists of its own shards and of the shards that were added to it
(pipeline.storage.index_folder.ADDED).
"""

import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipeline.compute.multivectors import MultiVectors
from pipeline.errors import IntegrityError, UsageError
from pipeline.storage.card import Card, Modality
from pipeline.storage.index_folder import COLUMNS, NUMBER, added_to, home_of, several, shards_in
from pipeline.storage.index_shard import MODALITIES, IndexShard, hide
from pipeline.storage.json_files import Json, fingerprint, require_same
from pipeline.storage.parsers import parser_of
from pipeline.storage.sources import ImageSources
from pipeline.storage.tables import ChainedTables, RowTable

if TYPE_CHECKING:
    from spacy import Language

log = logging.getLogger(__name__)


class StoredIndex:
    """An index of `shards`, at least one. `folder` is its name in messages.

    `run` is the run that the index came from, if a user names it: a run is trusted. The rows of the images `hidden`
    look as if they were removed. Raises UsageError if the shards are of different models.
    """

    def __init__(self, shards: Sequence[IndexShard], folder: Path | None = None, run: Path | None = None) -> None:
        first, *others = shards
        for other in others:
            if other.card.inputs.get("model") != first.card.inputs.get("model"):
                raise UsageError(
                    f"{other.folder} was made by another model than {first.folder}; {_remedy(first, other)}"
                )
            if _comparison(other.card) != _comparison(first.card):
                raise IntegrityError(f"{other.folder} uses another metric than {first.folder}; get it again")
        self.shards = list(shards)
        self.folder = folder if others and folder else first.folder
        self.run = run
        self.hidden: Sequence[int] = ()

    @cached_property
    def card(self) -> Card:
        """The first card, with the vectors, bytes and splits of all shards."""
        return _merged_card([shard.card for shard in self.shards])

    @property
    def first(self) -> IndexShard:
        """The first shard. Its model, encoders and vocabulary are the same in all shards."""
        return self.shards[0]

    @cached_property
    def shifts(self) -> list[Mapping[str, int]]:
        """The numbers that are added to the ids of each shard, by the column of the id."""
        shifts: list[Mapping[str, int]] = []
        ends = dict.fromkeys(NUMBER.values(), 0)
        for shard in self.shards:
            shift = {}
            for modality in MODALITIES:
                column = NUMBER[modality]
                least, greatest = shard.packed_table(modality).bounds(column)
                shift[column] = ends[column] if least < ends[column] else 0
                ends[column] = max(ends[column], greatest + 1 + shift[column])
            shifts.append(shift)
        return shifts

    def packed_table(self, modality: Modality) -> RowTable:
        """Open the table of all rows, which are unpacked on request. With several shards, it has the column SHARD."""
        tables = [shard.packed_table(modality) for shard in self.shards]
        if len(tables) == 1:
            return tables[0]
        columns = COLUMNS[modality].names
        shifts = [{name: shift for name, shift in each.items() if name in columns} for each in self.shifts]
        return ChainedTables(tables, shifts)

    def table(self, modality: Modality) -> pa.Table:
        """Return all rows. The rows of the `hidden` images look as if they were removed."""
        whole = self.first.table(modality) if len(self.shards) == 1 else self.packed_table(modality).unpack()
        return hide(whole, self.hidden)

    def bounds(self, modality: Modality) -> np.ndarray:
        """Return the first row (shards + 1,) of each shard in the table, and the number of all rows."""
        return np.cumsum([0, *(shard.packed_table(modality).num_rows for shard in self.shards)])

    def outline(self, modality: Modality) -> MultiVectors | None:
        """Return which vectors belong to which row of the table; None unless the model is multi-vector."""
        outlines = [outline for shard in self.shards if (outline := shard.outline(modality)) is not None]
        return MultiVectors.concatenate(outlines) if outlines else None

    def check(self) -> None:
        """Raise IntegrityError for any file that is missing or changed."""
        for shard in self.shards:
            shard.check()

    def check_rows(self) -> None:
        """Raise IntegrityError for a row that `table` would refuse."""
        for shard in self.shards:
            shard.check_rows()

    def photographs(self, named: Path | None = None, follow_links: bool = False) -> ImageSources:
        """Return the photos of the rows, below the folders that the cards name.

        If a command has `named` a folder, it replaces the folder that the first shard names.
        """
        roots = [shard.card.data_root for shard in self.shards]
        return ImageSources([named if named and root == roots[0] else Path(root) for root in roots], follow_links)

    def parser(self) -> "tuple[Callable[[], Language], Mapping[str, Json]]":
        """Return a function that loads the spaCy pipeline that parsed the sentences of the `run`, and its label table.

        Raises UsageError as `parser_of` does, and IntegrityError for a run with other labels.
        """
        load, labels = parser_of(self.run)
        own = self.first.model().details["labels"]
        require_same("label table", {str(self.run): labels["fingerprint"], str(self.folder): own})
        return load, labels


def open_index(*folders: Path, added: bool = True, run: Path | None = None, skip_verified: bool = False) -> StoredIndex:
    """Open the index in a folder, or the indexes of one model in several folders, with the shards `added` to them.

    Shards that were added to an earlier model are left out with a warning. `run` is the run that the indexes came from,
    if a user names it. `skip_verified` is as for IndexShard.

    Raises IntegrityError as IndexShard does, for a folder with indexes of several models and for an index that lacks
    one of its shards, and UsageError for folders of different models, or for a folder that is given twice.
    """
    opened: list[IndexShard] = []
    for folder in folders:
        own = [IndexShard(path, skip_verified) for path in shards_in(Path(folder))]
        model = own[0].card.inputs.get("model")
        if any(shard.card.inputs.get("model") != model for shard in own):
            raise several(Path(folder), [shard.folder for shard in own])
        if own[0].folder != Path(folder):
            _require_complete(Path(folder), own)
        opened += own
        further = added_to(home_of([shard.folder for shard in own])) if added else []
        known = {shard.folder for shard in opened}  # shards of one index, each of which brings what was added to it
        for shard in (IndexShard(path, skip_verified) for path in further if path not in known):
            if shard.card.inputs.get("model") == model:
                opened.append(shard)
            else:
                log.warning(
                    "%d photos in %s were added to an earlier model and are left out; `jointspace add` them again, or"
                    " delete that folder",
                    shard.card.images.count if shard.card.images else 0, shard.folder,
                )  # fmt: skip
    places = [shard.folder.resolve() for shard in opened]
    if repeated := next((place for place in places if places.count(place) > 1), None):
        raise UsageError(f"{repeated} is given twice; name it once")
    return StoredIndex(opened, Path(folders[0]), run)


def _require_complete(folder: Path, shards: Sequence[IndexShard]) -> None:
    """Raise IntegrityError if a shard is missing among the shards that were built together."""
    together: dict[tuple[str, int], set[int]] = {}
    for shard in shards:
        if part := shard.card.part:
            together.setdefault((shard.card.inputs.get("manifest", ""), part.of), set()).add(part.number)
    for (_, of), numbers in together.items():
        if missing := sorted(set(range(of)) - numbers):
            raise IntegrityError(
                f"{folder} holds {len(numbers)} of {of} index shards: {missing[0]:02d} is missing; run build-index for"
                " it"
            )


def _comparison(card: Card) -> tuple[str, str, int]:
    """Return how the vectors of an index compare."""
    return card.kind, card.metric, card.dim


def _remedy(first: IndexShard, other: IndexShard) -> str:
    """Say what to do with an index of another model."""
    new = sorted(first.card.encoders.keys() - other.card.encoders.keys())
    old = sorted(other.card.encoders.keys() - first.card.encoders.keys())
    applied = f"apply {first.folder} to its photos, or search it alone"
    if not (new and old):
        return applied
    return (
        f"its encoder is {old[0]} and not {new[0]}: {applied}; a run that has features of {old[0]} maps them by"
        f" `{shlex.join(['jointspace', 'migrate', old[0], new[0]])}`"
    )


def _merged_card(cards: Sequence[Card]) -> Card:
    """Return the first card, with the vectors, bytes and splits of all."""
    first = cards[0]
    if len(cards) == 1:
        return first
    changes: dict[str, object] = {
        "splits": list(dict.fromkeys(split for card in cards for split in card.splits)),
        "fingerprint": fingerprint("bundles", 1, [card.fingerprint for card in cards]),
    }
    for modality in MODALITIES:
        if indexes := [index for card in cards if (index := card.index_of(modality))]:
            count = sum(index.count for index in indexes)
            size = sum(index.bytes for index in indexes)
            changes[first.index_name(modality)] = indexes[0].model_copy(update={"count": count, "bytes": size})
    return first.model_copy(update=changes)

"""An index of one or more index shards of the same model, which are searched together.

The rows of all shards are numbered from 0 in the order of the shards. If a shard may have the same id as an earlier
shard, a number is added to all ids of the later shard. Its ids are then larger than the ids of the earlier shards.
Removed rows keep their ids, so a removal does not change other ids. The model, the encoders and the vocabulary are read
from the first shard.

The index in a folder consists of the shards that were built in this folder, and of the shards that were added to the
index later (in the subfolder pipeline.storage.index_folder.ADDED).
"""

import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipeline.errors import IntegrityError, UsageError
from pipeline.storage.card import Card, Modality
from pipeline.storage.files import REBUILD
from pipeline.storage.index_folder import COLUMNS, NUMBER, added_to, home_of, several, shards_in
from pipeline.storage.index_shard import MODALITIES, IndexShard, hide
from pipeline.storage.json_files import Json, fingerprint, require_same
from pipeline.storage.parsers import parser_of
from pipeline.storage.sources import ImageSources
from pipeline.storage.tables import ChainedTables, RowTable

if TYPE_CHECKING:
    from spacy.language import Language

log = logging.getLogger(__name__)


class StoredIndex:
    """An index of `shards`, at least one.

    `folder` is the folder of the whole index, which messages name. For a single shard, it is the folder of the shard.
    `run` is the run from which the index comes, if the user has named it: jointspace may then load code from this run.
    `hidden` are the ids of images that `table` treats as removed: in the tables that it returns, the rows of these
    images and of their captions contain only ids. In the tables that `packed_table` returns, these rows are complete.
    Raises UsageError if the shards are of different models, and IntegrityError if their vectors are compared in
    different ways.
    """

    def __init__(self, shards: Sequence[IndexShard], folder: Path | None = None, run: Path | None = None) -> None:
        first, *others = shards
        for other in others:
            if other.card.inputs.get("model") != first.card.inputs.get("model"):
                raise UsageError(
                    f"{other.folder} was made with another model than {first.folder}. {_remedy(first, other)}"
                )
            if _comparison(other.card) != _comparison(first.card):
                raise IntegrityError(
                    f"{other.folder} has the metric {other.card.metric} and {other.card.dim} dimensions, but"
                    f" {first.folder} has {first.card.metric} and {first.card.dim}. Search the two separately."
                    f" {REBUILD}"
                )
        self.shards = list(shards)
        self.folder = folder if others and folder else first.folder
        self.run = run
        self.hidden: Sequence[int] = ()

    @cached_property
    def card(self) -> Card:
        """The card of the whole index.

        With one shard, it is the card of the shard. With several shards, it is the card of the first shard with four
        changes: the number of vectors and the bytes of each FAISS index are sums over all shards, the splits are the
        splits of all shards, and the fingerprint is a fingerprint of all cards.
        """
        return _merged_card([shard.card for shard in self.shards])

    @property
    def first(self) -> IndexShard:
        """The first shard. Its model, encoders and vocabulary are the same in all shards."""
        return self.shards[0]

    @cached_property
    def shifts(self) -> list[Mapping[str, int]]:
        """The numbers that are added to the ids in each shard, so that no two shards have the same id. There is one
        mapping per shard: column of the ids -> number.

        A number is 0 if all ids of the shard are larger than the ids of the earlier shards.
        """
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
        """Open the table of a modality without unpacking it. With several shards, the table has the column SHARD."""
        tables = [shard.packed_table(modality) for shard in self.shards]
        if len(tables) == 1:
            return tables[0]
        columns = COLUMNS[modality].names
        shifts = [{name: shift for name, shift in each.items() if name in columns} for each in self.shifts]
        return ChainedTables(tables, shifts)

    def table(self, modality: Modality) -> pa.Table:
        """Read the whole table of a modality. Rows of the images `hidden` and of their captions contain only ids."""
        whole = self.first.table(modality) if len(self.shards) == 1 else self.packed_table(modality).unpack()
        return hide(whole, self.hidden)

    def bounds(self, modality: Modality) -> np.ndarray:
        """Return the number of the first row of each shard in the table of `modality`, and the number of all rows, as
        (shards + 1,)."""
        return np.cumsum([0, *(shard.packed_table(modality).num_rows for shard in self.shards)])

    def check(self) -> None:
        """Raise IntegrityError if any file of any shard is missing or was changed."""
        for shard in self.shards:
            shard.check()

    def check_rows(self) -> None:
        """Raise IntegrityError if a row of any shard has an id, a size or a path that jointspace would not write, such
        as a path that leads out of the folder of the photos, or if two rows of a shard have the same id."""
        for shard in self.shards:
            shard.check_rows()

    def photographs(self, named: Path | None = None, follow_links: bool = False) -> ImageSources:
        """Return a reader of the photos, in the folders that the cards name.

        A folder that the user has `named` replaces the folder on the card of the first shard, also for the other shards
        with the same folder. `follow_links` has the meaning that it has for ImageSource.
        """
        roots = [shard.card.data_root for shard in self.shards]
        return ImageSources([named if named and root == roots[0] else Path(root) for root in roots], follow_links)

    def parser(self) -> "tuple[Callable[[], Language], Mapping[str, Json]]":
        """Return a function that loads the spaCy pipeline with which the captions of the `run` were parsed, and the
        content of the run's `text/labels.json`.

        Raises UsageError if `run` is None, if the captions of the run were not parsed by spaCy, or if the pipeline is
        missing or has changed since. Raises IntegrityError if the run has other labels than the model.
        """
        load, labels = parser_of(self.run)
        own = self.first.model().details["labels"]
        require_same("label table", {str(self.run): labels["fingerprint"], str(self.folder): own})
        return load, labels


def open_index(*folders: Path, added: bool = True, run: Path | None = None, skip_verified: bool = False) -> StoredIndex:
    """Open the index in a folder, or the indexes of one model in several folders as one index.

    With `added`, the shards that were added to the indexes are included. Shards that were added while the index had
    another model are ignored with a warning. `run` is the run from which the indexes come, if the user has named it.
    With `skip_verified`, a large file that was verified before is not hashed again unless it was changed since.

    Raises IntegrityError if a folder has no index or has indexes of several models, if a card is damaged, or if an
    index lacks one of its shards. Raises UsageError if the folders have different models, or if a folder is given
    twice.
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
        # If several folders are shards of one index, each of them leads to the same additions.
        known = {shard.folder for shard in opened}
        for shard in (IndexShard(path, skip_verified) for path in further if path not in known):
            if shard.card.inputs.get("model") == model:
                opened.append(shard)
            else:
                log.warning(
                    "%d photos in %s are ignored, because they were added when the index had another model. Add them"
                    " again with `jointspace add`, or delete that folder.",
                    shard.card.images.count if shard.card.images else 0, shard.folder,
                )  # fmt: skip
    resolved = [shard.folder.resolve() for shard in opened]
    if repeated := next((path for path in resolved if resolved.count(path) > 1), None):
        raise UsageError(f"{repeated} is named twice. Name it once.")
    return StoredIndex(opened, Path(folders[0]), run)


def _require_complete(folder: Path, shards: Sequence[IndexShard]) -> None:
    """Raise IntegrityError if some of the shards that were built together are missing."""
    together: dict[tuple[str, int], set[int]] = {}
    for shard in shards:
        if part := shard.card.part:
            together.setdefault((shard.card.inputs.get("manifest", ""), part.of), set()).add(part.number)
    for (_, of), numbers in together.items():
        if missing := sorted(set(range(of)) - numbers):
            raise IntegrityError(
                f"{folder} contains {len(numbers)} of {of} index shards. The shard {missing[0]:02d} is missing. Copy"
                " this shard again, or build it with `jointspace run CONFIG`."
            )


def _comparison(card: Card) -> tuple[str, str, int]:
    """Return the kind, the metric and the number of dimensions of an index shard. All shards of an index must have the
    same kind, metric and number of dimensions."""
    return card.kind, card.metric, card.dim


def _remedy(first: IndexShard, other: IndexShard) -> str:
    """Return the remedy in the error for `other`, a shard that does not have the model of the shard `first`."""
    new = sorted(first.card.encoders.keys() - other.card.encoders.keys())
    old = sorted(other.card.encoders.keys() - first.card.encoders.keys())
    command = shlex.join(["jointspace", "apply", str(first.folder), "PHOTOS"])
    applied = f"Index its photos with the same model by `{command}`, or search it alone."
    if not (new and old):
        return applied
    command = shlex.join(["jointspace", "migrate", old[0], new[0]])
    return (
        f"{applied} Its encoder is {old[0]} and not {new[0]}. A run that has features of {old[0]} can map them to"
        f" {new[0]} with `{command}`."
    )


def _merged_card(cards: Sequence[Card]) -> Card:
    """Compute the card of an index from the cards of its shards, as `StoredIndex.card` describes it."""
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

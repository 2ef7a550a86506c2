"""Adding vectors to an existing index and removing some, so that an id never changes its meaning.

An id is a row of the bundle's table. New vectors get the ids after the last row; those of removed ones stay empty.
Where a row has several vectors, these are numbered without gaps, and renumbered when some are removed.
What an index was trained on does not change, so it drifts as its vectors do: lists grow unevenly and recall falls.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from pipeline.errors import InputError
from pipeline.index.build import QUERIES
from pipeline.index.candidates import build
from pipeline.index.format import from_bytes, to_bytes
from pipeline.index.gallery import Gallery, make_gallery
from pipeline.index.lists_on_gpu import Adder
from pipeline.index.shortlist import ids_of_lists
from pipeline.index.shortlist_cost import ShortlistCost, measure_shortlist
from pipeline.index.tuning import NEIGHBOURS, Questions, SearchSetting, apply, ask, index_recall, stages_of
from pipeline.index.vectors import Vectors, evenly_spaced
from pipeline.multivectors import Comparison, Items, MultiVectors
from pipeline.precision import require_finite

NAMED = "IDMap,"
"""What the factory string of an index begins with that holds its vectors' ids in a table beside them."""


@dataclass(frozen=True)
class Condition:
    """The state of an index: `recall` on real queries, and how uneven its lists are: `imbalance` is 1 where all are
    equally long, and how many times longer a search takes otherwise (None: it has no lists). `cost` is that of the
    shortlist of a multi-vector model."""

    recall: float
    imbalance: float | None
    cost: ShortlistCost | None

    def to_dict(self) -> dict[str, Any]:
        values = {f"recall@{NEIGHBOURS}": self.recall, "imbalance": self.imbalance}
        return {**values, "shortlist": self.cost.to_dict()} if self.cost else values


@dataclass(frozen=True)
class Revised:
    """A changed index as bytes, and its condition `before` and `after`."""

    data: memoryview
    before: Condition
    after: Condition

    def card(self) -> dict[str, Any]:
        """What the card of the index says otherwise."""
        return {**self.after.to_dict(), "before": self.before.to_dict()}

    def drift(self, floor: float) -> str:
        """What has changed, and what to do where that is too much."""
        before, after = self.before, self.after
        parts = [f"index recall@{NEIGHBOURS} {before.recall:.3f}, then {after.recall:.3f}"]
        if after.imbalance is not None:
            parts.append(f"list imbalance {before.imbalance:.2f}, then {after.imbalance:.2f}")
        if after.recall < floor:
            parts.append(f"that is below index.recall_floor {floor:g}: run build-index again")
        if after.cost and after.cost.shortlist:
            parts.append(f"shortlist recall@{NEIGHBOURS} {before.cost.recall:.3f}, then {after.cost.recall:.3f}")
            if after.cost.recall < floor:
                remedy = "run build-index again with a longer index.shortlist"
                parts[-1] += f", which is below index.recall_floor {floor:g}: {remedy}"
        return "; ".join(parts)


def revise(
    data: memoryview,
    part: Any,
    changed: Any,
    vectors: Callable[[Any], Vectors],
    change: Callable[[faiss.Index], faiss.Index],
    queries: Items,
    comparison: Comparison,
) -> Revised:
    """`change` the index of `part`, the bytes `data`, to that of the `changed` part; it holds their `vectors`.

    Both are a pipeline.storage.revision.Modality. The condition is measured with `queries` of the other modality.
    """
    name = f"{part.name}.faiss"

    def condition(index: faiss.Index, of: Any) -> Condition:
        gallery = make_gallery(of.modality, index, of.outline, comparison, of.card)
        return examine(gallery, vectors(of), of.numbers, queries, part.card["metric"])

    before = condition(from_bytes(data, name, part.card), part)
    index = change(from_bytes(data, name, part.card))
    written = to_bytes(index)  # before a gallery adds to it where each vector is
    return Revised(written, before, condition(index, changed))


def examine(gallery: Gallery, vectors: Vectors, ids: np.ndarray, queries: Items, metric: str) -> Condition:
    """The condition of a gallery's index, which holds `vectors` under `ids` (n,)."""
    several = isinstance(queries, MultiVectors)
    asking = queries.vectors[evenly_spaced(len(queries.vectors), QUERIES)] if several else queries
    asked = ask(asking, vectors.blocks(), vectors.count, metric)
    right = np.where(asked.right >= 0, ids[asked.right], -1)
    inverted = stages_of(gallery.index).inverted
    imbalance = None if inverted is None else float(inverted.invlists.imbalance_factor())
    recall = index_recall(gallery.index, Questions(asked.queries, asked.k, right))
    return Condition(recall, imbalance, measure_shortlist(gallery, queries) if several else None)


def add(index: faiss.Index, vectors: Vectors, first: int) -> faiss.Index:
    """`index` with `vectors` under the ids `first`, `first` + 1, ...

    Raises IntegrityError naming a row that is not finite.
    """
    with_ids = isinstance(faiss.downcast_index(index), faiss.IndexIVF | faiss.IndexIDMap)
    adder = Adder(index)
    for block in vectors.blocks():
        require_finite("embeddings", "new vectors", block)
        adder.add(block, np.arange(first, first + len(block)) if with_ids else None)
        first += len(block)
    return index


def remove(
    index: faiss.Index,
    ids: np.ndarray,
    factory: str,
    setting: SearchSetting,
    rest: Vectors,
    rest_ids: np.ndarray,
    metric: str,
) -> faiss.Index:
    """`index` without `ids`, all others under the ids that they had.

    What FAISS cannot take vectors out of is built again by its `factory` string and `setting` from the `rest`, whose
    ids are `rest_ids`. Raises InputError where nothing would be left.
    """
    _require_rest(rest.count)
    if can_remove(factory):
        index.remove_ids(ids)
        return index
    named = build(factory.removeprefix(NAMED), rest, metric, ids=rest_ids).index
    apply(named, setting)
    return named


def _require_rest(count: int) -> None:
    """Raises InputError where `count`, what would be left in an index, is nothing."""
    if not count:
        raise InputError("nothing would be left in the index; delete the bundle instead")


def setting_of(card: dict[str, Any]) -> SearchSetting:
    """What the index of a card was tuned to."""
    return SearchSetting(card["nprobe"], card["efSearch"], card["k_factor"])


def can_remove(factory: str) -> bool:
    """Whether FAISS can take vectors out of such an index and leave the others their ids."""
    return factory.startswith("IVF") and "fs" not in factory and "Refine" not in factory and "RFlat" not in factory


def factory_without(factory: str) -> str:
    """The factory string of what `remove` makes of such an index."""
    return factory if can_remove(factory) else NAMED + factory.removeprefix(NAMED)


def drop(index: faiss.Index, places: np.ndarray) -> faiss.Index:
    """A Flat or IVF,Flat index without the vectors at `places` (k,); the others are renumbered in their order.

    Raises InputError where nothing would be left.
    """
    kept = np.ones(index.ntotal, bool)
    kept[places] = False
    _require_rest(int(kept.sum()))
    index.remove_ids(places)
    if isinstance(index, faiss.IndexIVF):  # which leaves them their ids
        numbers = np.cumsum(kept) - 1
        for _, ids in ids_of_lists(index):
            ids[:] = numbers[ids]
    return index

"""Adding sets of fragments to a bundle's index, and taking some out; pipeline.index.upkeep has it for single vectors.

The row of a set is what never changes its meaning. Its fragments, which only `offsets` point at, are numbered anew.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import faiss
import numpy as np

from pipeline.index.build import QUERIES
from pipeline.index.format import from_bytes, to_bytes
from pipeline.index.fragment_gallery import FragmentGallery
from pipeline.index.fragment_index import FRAGMENTS
from pipeline.index.shortlist import Shortlist, ids_of_lists, shortlist_of
from pipeline.index.shortlist_cost import ShortlistCost, measure_shortlist
from pipeline.index.tuning import NEIGHBOURS
from pipeline.index.upkeep import Condition, examine, report_drift, require_rest
from pipeline.index.vectors import ArrayVectors, evenly_spaced
from pipeline.metrics.fragment_scores import FragmentSets, ScoreRule


class Sets(Protocol):
    """Which fragments are one set, and the sets' globals; see FragmentGallery."""

    offsets: np.ndarray
    globals: np.ndarray | None


@dataclass(frozen=True)
class SetCondition:
    """The state of the `index` of all fragments, and what its shortlist costs."""

    index: Condition
    cost: ShortlistCost


@dataclass(frozen=True)
class Revised:
    """A changed index as bytes, which holds `count` fragments, and its condition `before` and `after`."""

    data: memoryview
    count: int
    before: SetCondition
    after: SetCondition

    def card(self) -> dict[str, Any]:
        """What the card of the index says otherwise."""
        before = {**self.before.index.to_dict(), "shortlist": self.before.cost.to_dict()}
        told = {**self.after.index.to_dict(), "shortlist": self.after.cost.to_dict()}
        return {"count": self.count, **told, "before": before}

    def drift(self, floor: float) -> str:
        """What has changed, for a person, and what to do where that is too much."""
        told = report_drift(self.before.index, self.after.index, floor)
        if self.after.cost.shortlist is None:
            return told
        recalls = self.before.cost.recall, self.after.cost.recall
        told += f"; shortlist recall@{NEIGHBOURS} {recalls[0]:.3f}, then {recalls[1]:.3f}"
        if recalls[1] < floor:
            told += (
                f", which is below index.recall_floor {floor:g}: run build-index again with a longer index.shortlist"
            )
        return told


def revise(
    modality: str,
    data: memoryview,
    card: dict[str, Any],
    change: Callable[[faiss.Index], None],
    sets: Sets,
    changed: Sets,
    rule: ScoreRule,
    queries: FragmentSets,
) -> Revised:
    """`change` the index of `data` and `card`, whose fragments are those of `sets`, to that of the `changed` sets.

    Its condition is measured with `queries`, sets of the other modality.
    """
    name, shortlist = f"{FRAGMENTS[modality]}.faiss", shortlist_of(card["shortlist"])

    def condition(index: faiss.Index, of: Sets) -> SetCondition:
        return examine_sets(FragmentGallery(modality, index, of.offsets, rule, of.globals), queries, shortlist)

    before, index = condition(from_bytes(data, name, card), sets), from_bytes(data, name, card)
    change(index)
    written = to_bytes(index)  # before a gallery adds to it where each vector is
    return Revised(written, index.ntotal, before, condition(index, changed))


def examine_sets(gallery: FragmentGallery, queries: FragmentSets, shortlist: Shortlist | None) -> SetCondition:
    """The condition of a gallery's index, and of the shortlist that it is searched by."""
    vectors = ArrayVectors(gallery.vectors())
    asked = queries.vectors[evenly_spaced(len(queries.vectors), QUERIES)]
    condition = examine(gallery.index, vectors, np.arange(vectors.count), asked, "inner_product")
    return SetCondition(condition, measure_shortlist(gallery, queries, shortlist))


def drop(index: faiss.Index, fragments: np.ndarray) -> None:
    """Take `fragments` (k,) out of a Flat or IVF,Flat index; the others are numbered anew, in the order that they had.

    Raises InputError where nothing would be left.
    """
    kept = np.ones(index.ntotal, bool)
    kept[fragments] = False
    require_rest(int(kept.sum()))
    index.remove_ids(fragments)
    if isinstance(index, faiss.IndexIVF):  # which leaves them their ids
        numbers = np.cumsum(kept) - 1
        for _, ids in ids_of_lists(index):
            ids[:] = numbers[ids]

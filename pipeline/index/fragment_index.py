"""Building the index of all fragments of one modality, and measuring what search by a shortlist of them costs.

Looking fragments up in an exact index takes longer than to score all of its items, so that only an inverted file, above
`index.exact_limit` fragments, is searched by a shortlist.
"""

from dataclasses import dataclass, replace
from typing import Any

from pipeline.index.build import QUERIES, BuiltIndex, build_index
from pipeline.index.candidates import FEW, MANY, Progress, lists_for, unwatched
from pipeline.index.chooser import Requirements
from pipeline.index.format import from_bytes
from pipeline.index.shortlist import FragmentGallery, ShortlistCost, measure_everything, measure_shortlist
from pipeline.index.tuning import NEIGHBOURS
from pipeline.index.vectors import ArrayVectors, evenly_spaced
from pipeline.neural.fragment_scores import FragmentSets, ScoreRule

FRAGMENTS = {"images": "regions", "sentences": "words"}
"""Modality -> what its sets consist of."""
SET_QUERIES = 100
"""Sets of the other modality that measure a shortlist; each is also scored with everything."""


@dataclass(frozen=True)
class Shortlist:
    """For each fragment of a query `nearest` fragments are looked up; `shortlist` items are then scored exactly."""

    nearest: int
    shortlist: int


@dataclass(frozen=True)
class BuiltFragments:
    """The `index` of all fragments, the `shortlist` that it is searched by (None: all items are scored), and what that
    cost on `queries` sets."""

    index: BuiltIndex
    shortlist: Shortlist | None
    cost: ShortlistCost
    queries: int

    def card(self) -> dict[str, Any]:
        """The index's card, with that of its shortlist: `recall@10` is the share of the ten best items by exact scores
        of everything that it finds, `recall@1` that of the best one, `exact_queries_per_second` the speed without."""
        return {
            **self.index.card.to_dict(),
            "shortlist": {
                "nearest": self.shortlist and self.shortlist.nearest,
                "shortlist": self.shortlist and self.shortlist.shortlist,
                f"recall@{NEIGHBOURS}": self.cost.recall,
                "recall@1": self.cost.first,
                "scored": self.cost.scored,
                "proven": self.cost.proven,
                "queries": self.queries,
                "queries_per_second": 1 / self.cost.seconds,
                "exact_queries_per_second": 1 / self.cost.exact_seconds,
            },
        }


def build_fragment_index(
    modality: str,
    sets: FragmentSets,
    queries: FragmentSets,
    rule: ScoreRule,
    requirements: Requirements,
    shortlist: Shortlist,
    progress: Progress = unwatched,
) -> BuiltFragments:
    """The index of the fragments of `sets`, the `images` or `sentences`, measured with `queries`, sets of the other.

    It gives its vectors back exactly: an exact index, or above `requirements.exact_limit` fragments an inverted file of
    them, whatever `requirements.candidates` says. Raises as pipeline.index.build.build_index does.
    """
    count = len(sets.vectors)
    lists = dict.fromkeys(lists_for(count, multiple) for multiple in (FEW, MANY))
    requirements = replace(requirements, candidates=tuple(f"IVF{number},Flat" for number in lists))
    asked = queries.vectors[evenly_spaced(len(queries.vectors), QUERIES)]
    built = build_index(ArrayVectors(sets.vectors), asked, "inner_product", requirements, progress)
    index = from_bytes(built.data, f"{FRAGMENTS[modality]}.faiss", built.card.to_dict())
    gallery = FragmentGallery(modality, index, sets.offsets, rule, sets.globals)
    if built.card.factory == "Flat":
        return BuiltFragments(built, None, measure_everything(gallery, queries, NEIGHBOURS, progress), len(queries))
    cost = measure_shortlist(gallery, queries, NEIGHBOURS, shortlist.nearest, shortlist.shortlist, progress)
    return BuiltFragments(built, shortlist, cost, len(queries))

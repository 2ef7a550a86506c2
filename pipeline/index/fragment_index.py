"""Building the index of all fragments of one modality, and measuring what search by a shortlist of them costs.

A shortlist is read off the lists of an inverted file, so that only above `index.exact_limit` fragments, where there is
one, a search goes by it.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipeline.index.build import QUERIES, BuiltIndex, build_index
from pipeline.index.candidates import FEW, MANY, Progress, lists_for, unwatched
from pipeline.index.format import from_bytes
from pipeline.index.fragment_gallery import FragmentGallery
from pipeline.index.requirements import Requirements
from pipeline.index.shortlist import Shortlist
from pipeline.index.shortlist_cost import ShortlistCost, measure_shortlist
from pipeline.index.vectors import ArrayVectors, evenly_spaced
from pipeline.metrics.fragment_scores import FragmentSets, ScoreRule

if TYPE_CHECKING:
    import torch

FRAGMENTS = {"images": "regions", "sentences": "words"}
"""Modality -> what its sets consist of."""
SET_QUERIES = 100
"""Sets of the other modality that measure a shortlist; each is also scored with everything."""


@dataclass(frozen=True)
class BuiltFragments:
    """The `index` of all fragments, and the `cost` of its shortlist, if it is searched by one."""

    index: BuiltIndex
    cost: ShortlistCost

    def card(self) -> dict[str, Any]:
        """The index's card, with that of its shortlist: `recall@10` is the share of the ten best items by exact scores
        of everything that it finds, `recall@1` that of the best one, `exact_queries_per_second` the speed without."""
        return {**self.index.card.to_dict(), "shortlist": self.cost.to_dict()}


def build_fragment_index(
    modality: str,
    sets: FragmentSets,
    queries: FragmentSets,
    rule: ScoreRule,
    requirements: Requirements,
    shortlist: Shortlist,
    progress: Progress = unwatched,
    gpu: "torch.device | None" = None,
) -> BuiltFragments:
    """The index of the fragments of `sets`, the `images` or `sentences`, measured with `queries`, sets of the other.

    It gives its vectors back exactly: an exact index, or above `requirements.exact_limit` fragments an inverted file of
    them, whatever `requirements.candidates` says. Raises as pipeline.index.build.build_index does.
    """
    count = len(sets.vectors)
    lists = dict.fromkeys(lists_for(count, multiple) for multiple in (FEW, MANY))
    requirements = replace(requirements, candidates=tuple(f"IVF{number},Flat" for number in lists))
    asked = queries.vectors[evenly_spaced(len(queries.vectors), QUERIES)]
    built = build_index(ArrayVectors(sets.vectors), asked, "inner_product", requirements, progress, gpu=gpu)
    index = from_bytes(built.data, f"{FRAGMENTS[modality]}.faiss", built.card.to_dict())
    gallery = FragmentGallery(modality, index, sets.offsets, rule, sets.globals)
    used = None if built.card.factory == "Flat" else shortlist
    return BuiltFragments(built, measure_shortlist(gallery, queries, used, progress))

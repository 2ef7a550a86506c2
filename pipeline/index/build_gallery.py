"""Building the index of a gallery, of one vector an item or of several, and measuring what its shortlist costs.

A shortlist is read off the lists of an inverted file, so that only above `index.exact_limit` vectors, where there is
one, a search goes by it.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipeline.index.build import QUERIES, BuiltIndex, build_index
from pipeline.index.candidates import FEW, MANY, Progress, lists_for, unwatched
from pipeline.index.format import from_bytes
from pipeline.index.gallery import MultiVectorGallery
from pipeline.index.requirements import Requirements
from pipeline.index.shortlist import Shortlist
from pipeline.index.shortlist_cost import ShortlistCost, measure_shortlist
from pipeline.index.vectors import Vectors, evenly_spaced
from pipeline.multivectors import Comparison, Items, MultiVectors

if TYPE_CHECKING:
    import torch

SET_QUERIES = 100
"""Items of the other modality that measure a shortlist; each is also scored with everything."""


def queries_of(multi_vector: bool) -> int:
    """How many items of the other modality measure an index."""
    return SET_QUERIES if multi_vector else QUERIES


@dataclass(frozen=True)
class BuiltGallery:
    """The `index` of all vectors, and the `cost` of its shortlist where items have several vectors."""

    index: BuiltIndex
    cost: ShortlistCost | None

    def card(self) -> dict[str, Any]:
        """The index's card, with that of its shortlist: `recall@10` is the share of the ten best items by exact scores
        of everything that it finds, `recall@1` that of the best one, `exact_queries_per_second` the speed without."""
        card = self.index.card.to_dict()
        return {**card, "shortlist": self.cost.to_dict()} if self.cost else card


def build_gallery(
    modality: str,
    vectors: Vectors,
    outline: MultiVectors | None,
    queries: Items,
    comparison: Comparison,
    requirements: Requirements,
    shortlist: Shortlist,
    progress: Progress = unwatched,
    gpu: "torch.device | None" = None,
) -> BuiltGallery:
    """The index of the `vectors` of all `images` or `sentences`, measured with `queries` of the other modality.

    Where items have several, by their `outline`, it gives its vectors back exactly: an exact index, or above
    `requirements.exact_limit` vectors an inverted file of them, whatever `requirements.candidates` says; what its
    `shortlist` costs is measured. Raises as pipeline.index.build.build_index does.
    """
    if outline is None:
        return BuiltGallery(build_index(vectors, queries, comparison, requirements, progress, gpu), None)
    factories = dict.fromkeys(f"IVF{lists_for(vectors.count, multiple)},Flat" for multiple in (FEW, MANY))
    requirements = replace(requirements, candidates=tuple(factories))
    asked = queries.vectors[evenly_spaced(len(queries.vectors), QUERIES)]
    built = build_index(vectors, asked, "inner_product", requirements, progress, gpu=gpu)
    index = from_bytes(built.data, f"the index of {modality}", built.card.to_dict())
    used = None if built.card.factory == "Flat" else shortlist
    gallery = MultiVectorGallery(modality, index, outline, comparison, used)
    return BuiltGallery(built, measure_shortlist(gallery, queries, progress))

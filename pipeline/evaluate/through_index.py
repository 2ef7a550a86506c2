"""What retrieval loses by an approximate index: the same queries by exact search and through the index file."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.index.exact import search_exact
from pipeline.index.gallery import Gallery
from pipeline.index.vectors import Vectors
from pipeline.metrics.retrieval import CUTOFFS
from pipeline.multivectors import Items

if TYPE_CHECKING:
    import torch

DEPTH = 1000
"""Answers considered; a right one beyond them counts as one rank more."""
TIE = 1e-6
"""Relative difference of scores that are the same but for rounding."""


@dataclass(frozen=True)
class Cost:
    """Recall@K in percent and the median rank `by_exact_search` and `through_index`, in a gallery of `gallery`."""

    by_exact_search: dict[str, float]
    through_index: dict[str, float]
    gallery: int
    depth: int


def cost_through(
    gallery: Gallery,
    vectors: Vectors,
    ids: np.ndarray,
    owners: np.ndarray,
    queries: Items,
    query_owners: np.ndarray,
    gpu: "torch.device | None" = None,
) -> Cost:
    """Both measures of `queries`, query j being of image `query_owners[j]` and id i of the gallery of `owners[i]`.

    Its index holds `vectors` (n, c) under `ids` (n,); these are searched exactly on `gpu`, where there is one. At
    most as many answers are considered as the gallery considers.
    """
    depth = min(max(min(DEPTH, gallery.depth or DEPTH), *CUTOFFS), len(gallery))
    if gallery.multi_vector:  # whose index has its vectors as they are
        exact = gallery.search_all(queries, depth)
    else:
        exact = search_exact(queries, vectors.blocks(), depth, gallery.metric, gpu).renumber(ids)
    ranks = {}
    # An index finds more of the first ten when it is asked for more than ten, so each measure has its own search.
    few = depth if gallery.steady else min(max(CUTOFFS), depth)
    for k in {few, depth}:
        found = gallery.search(queries, k)
        ranks["exact", k] = first_ranks(exact.rows[:, :k], exact.scores[:, :k], owners, query_owners)
        ranks["index", k] = first_ranks(found.rows, found.scores, owners, query_owners)
    return Cost(*(_measure(ranks[kind, few], ranks[kind, depth]) for kind in ("exact", "index")), len(gallery), depth)


def first_ranks(found: np.ndarray, scores: np.ndarray, owners: np.ndarray, query_owners: np.ndarray) -> np.ndarray:
    """(q,) the rank from 1 of each query's first right answer in `found` (q, k), ids or -1; k + 1 for none.

    Ties count against the model; `scores` (q, k) that differ by rounding only are ties.
    """
    right = (owners[found] == query_owners[:, None]) & (found >= 0)
    best = np.where(right, scores, -np.inf).max(axis=1)
    above = (scores >= (best - TIE * np.maximum(np.abs(best), 1))[:, None]) & ~right & (found >= 0)
    return np.where(right.any(axis=1), above.sum(axis=1), found.shape[1]) + 1


def _measure(first: np.ndarray, all_ranks: np.ndarray) -> dict[str, float]:
    recalls = {f"recall@{k}": 100 * float((first <= k).mean()) for k in CUTOFFS}
    return {**recalls, "median_rank": float(np.median(all_ranks))}

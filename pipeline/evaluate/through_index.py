"""What an approximate index costs retrieval: the same queries, by exact search and through the index file."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

from pipeline.index.exact import search_exact
from pipeline.index.fragment_gallery import FragmentGallery
from pipeline.index.shortlist import Shortlist
from pipeline.metrics.retrieval import CUTOFFS

if TYPE_CHECKING:
    import torch

    from pipeline.metrics.fragment_scores import FragmentSets

DEPTH = 1000
"""Answers that are looked at; a right one beyond counts as one rank more."""


TIE = 1e-6
"""Relative difference of scores that are the same but for rounding."""


@dataclass(frozen=True)
class Cost:
    """Recall@K in percent and the median rank `by_exact_search` and `through_index`, in a gallery of `gallery`."""

    by_exact_search: dict[str, float]
    through_index: dict[str, float]
    gallery: int
    depth: int

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


def cost_of_approximation(
    index: faiss.Index,
    blocks: Iterable[np.ndarray],
    ids: np.ndarray,
    owners: np.ndarray,
    queries: np.ndarray,
    query_owners: np.ndarray,
    metric: str,
    gpu: "torch.device | None" = None,
) -> Cost:
    """Both measures of `queries` (q, c), query j being of image `query_owners[j]`.

    `index` holds the vectors of `blocks`, (n, c) in all, under `ids` (n,), ascending, and id i is of image `owners[i]`.
    These are searched exactly on `gpu`, where there is one.
    """
    depth, queries = min(DEPTH, len(ids)), np.ascontiguousarray(queries, np.float32)
    exact = search_exact(queries, blocks, depth, metric, gpu)
    sign = -1 if metric == "euclidean" else 1
    ranks = {}
    # An index finds more of the first ten when it is asked for more than ten, so each measure has its own search.
    for k in (min(max(CUTOFFS), depth), depth):
        scores, rows = index.search(queries, k)
        ranks["exact", k] = first_ranks(ids[exact.rows[:, :k]], exact.scores[:, :k], owners, query_owners)
        ranks["index", k] = first_ranks(rows, sign * scores, owners, query_owners)
    measured = [_measure(ranks[kind, min(max(CUTOFFS), depth)], ranks[kind, depth]) for kind in ("exact", "index")]
    return Cost(*measured, len(ids), depth)


def cost_of_shortlist(
    gallery: FragmentGallery,
    shortlist: Shortlist | None,
    owners: np.ndarray,
    queries: "FragmentSets",
    query_owners: np.ndarray,
) -> Cost:
    """The same for sets of fragments: item i of `gallery` is of image `owners[i]`, query j of `query_owners[j]`.

    No more answers are looked at than are on the `shortlist`. Every query is scored with everything once.
    """
    longest = DEPTH if shortlist is None else min(DEPTH, shortlist.shortlist)
    depth, vectors = min(max(longest, *CUTOFFS), len(gallery)), gallery.vectors()
    ranks = np.empty((2, len(queries)), np.int64)
    for row in range(len(queries)):
        query = queries.between(row, row + 1)
        exact = gallery.score_all(query, vectors)[gallery.there]
        best = np.argsort(-exact, kind="stable")[:depth]
        found = gallery.search(query, depth, shortlist)
        for kind, rows, scores in ((0, gallery.there[best], exact[best]), (1, found.rows, found.scores)):
            ranks[kind, row] = first_ranks(rows[None], scores[None], owners, query_owners[row, None])[0]
    return Cost(*(_measure(own, own) for own in ranks), len(gallery), depth)


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

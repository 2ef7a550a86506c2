"""What an approximate index costs retrieval: the same queries, by exact search and through the index file."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from pipeline.evaluate.retrieval import CUTOFFS
from pipeline.index.exact import search_exact

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
) -> Cost:
    """Both measures of `queries` (q, c), query j being of image `query_owners[j]`.

    `index` holds the vectors of `blocks`, (n, c) in all, under `ids` (n,), ascending, and id i is of image `owners[i]`.
    """
    depth, queries = min(DEPTH, len(ids)), np.ascontiguousarray(queries, np.float32)
    exact = search_exact(queries, blocks, depth, metric)
    sign = -1 if metric == "euclidean" else 1
    ranks = {}
    # An index finds more of the first ten when it is asked for more than ten, so each measure has its own search.
    for k in (min(max(CUTOFFS), depth), depth):
        scores, rows = index.search(queries, k)
        ranks["exact", k] = first_ranks(ids[exact.rows[:, :k]], exact.scores[:, :k], owners, query_owners)
        ranks["index", k] = first_ranks(rows, sign * scores, owners, query_owners)
    measured = [_measure(ranks[kind, min(max(CUTOFFS), depth)], ranks[kind, depth]) for kind in ("exact", "index")]
    return Cost(*measured, len(ids), depth)


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

"""Exact search without an index, in vectors that may not fit into memory. The recall of an index is measured by
comparison with the results of an exact search.

The vectors are read in blocks. The scores of a block are computed as a matrix product in single precision, by FAISS or
on a GPU, and the best k are kept. Vectors whose scores differ by less than the rounding of single precision may come in
the wrong order. Rows with equal scores are sorted by their numbers, but if they compete for the last of the k ranks,
any of them may be kept.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.compute.device import OomBatcher, full_float32, upload
from pipeline.compute.lazy_rows import ChosenRows
from pipeline.compute.precision import require_finite

if TYPE_CHECKING:
    import torch

BLOCK_ROWS = 1 << 16
"""Largest number of vectors in one block, and in one matrix product on a GPU."""
BLOCK_BYTES = 1 << 25
"""Largest size in bytes of a block of several vectors. A block has at least one vector."""
FAISS_ROWS = 1 << 11
"""Number of vectors in one matrix product of FAISS. With twice FAISS's usual number, exact search is 3 % faster."""
QUERY_ROWS = 1 << 10
"""Largest number of queries in one matrix product on a GPU."""


class Vectors:
    """Vectors as the rows of `array`: an array (count, dim) float32 in memory, or a ChosenRows object that reads rows
    from files on request.

    Each call of a method reads the rows again.
    """

    def __init__(self, array: np.ndarray | ChosenRows) -> None:
        self.array = array
        self.count, self.dim = array.shape

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all vectors in order, in blocks (n_i, dim) of at most BLOCK_ROWS vectors and at most BLOCK_BYTES
        bytes, but of at least one vector."""
        rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES // (4 * self.dim)))
        return (self.array[start : start + rows] for start in range(0, self.count, rows))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors (k, dim) float32 of the ascending `rows` (k,)."""
        return self.array[rows]


def evenly_spaced(n: int, most: int) -> np.ndarray:
    """Return at most `most` of the row numbers 0 to `n` - 1, evenly spaced from the first to the last, in ascending
    order.

    All row numbers are returned if there are at most `most`. If `most` is 1, only row 0 is returned.
    """
    return np.linspace(0, n - 1, min(n, most)).astype(np.int64)


@dataclass(frozen=True)
class Neighbours:
    """The k nearest vectors of each of q queries, the best first: their `rows` (q, k) int64 and their `scores` (q, k)
    float32.

    A score is the inner product, or the negative squared distance, so that a greater score is better. If fewer than k
    vectors were found for a query, its remaining rows are -1 and their scores are -inf.
    """

    rows: np.ndarray
    scores: np.ndarray

    @classmethod
    def none(cls, queries: int, k: int) -> "Neighbours":
        """Return `k` missing neighbours for each of a number of `queries`: each row is -1 with the score -inf."""
        return cls(np.full((queries, k), -1, np.int64), np.full((queries, k), -np.inf, np.float32))

    @classmethod
    def of_faiss(cls, values: np.ndarray, rows: np.ndarray, metric: str) -> "Neighbours":
        """Convert the result of a FAISS search. `rows` (q, k) are the rows that FAISS has found, or -1 for missing
        results. `values` (q, k) are squared distances if `metric` is euclidean, and otherwise inner products.

        Squared distances become negative scores. The scores of the rows -1 become -inf.
        """
        scores = -values if metric == "euclidean" else values
        return cls(rows, np.where(rows >= 0, scores, -np.inf))

    def merge(self, other: "Neighbours") -> "Neighbours":
        """Return new neighbours: for each query, the k best among its k neighbours in this object and its neighbours in
        `other`.

        If scores are equal, the smaller row comes first. The rows -1 come last. No vector may be a neighbour of the
        same query in both objects.
        """
        rows = np.hstack([self.rows, other.rows])
        scores = np.hstack([self.scores, other.scores])
        best = np.lexsort((rows, -scores))[:, : self.rows.shape[1]]
        return Neighbours(np.take_along_axis(rows, best, axis=1), np.take_along_axis(scores, best, axis=1))

    def of_query(self, query: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows (n,) and the scores (n,) of the query with the number `query`, without the rows -1. n is at
        most k."""
        there = self.rows[query] >= 0
        return self.rows[query][there], self.scores[query][there]

    def renumber(self, ids: np.ndarray) -> "Neighbours":
        """Return new neighbours with `ids[row]` in place of each row. The rows -1 stay -1."""
        rows = self.rows.copy()
        there = self.rows >= 0
        rows[there] = ids[rows[there]]
        return Neighbours(rows, self.scores)


def search_exact(
    queries: np.ndarray, blocks: Iterable[np.ndarray], k: int, metric: str, gpu: "torch.device | None" = None
) -> Neighbours:
    """Find the `k` nearest vectors of each of the `queries` (q, c) in all `blocks` (n_i, c), float32.

    The vectors of all blocks are numbered one after another from 0, and these numbers are the rows of the result. The
    result always has `k` columns. If there are fewer vectors, its last columns have the row -1 and the score -inf.
    `metric` is inner_product or euclidean. The search runs on `gpu`, or with FAISS on the CPU if `gpu` is None. Raises
    IntegrityError that names the first query or vector with NaN or infinity.
    """
    require_finite("exact search", "queries", queries)
    queries = np.ascontiguousarray(queries, np.float32)
    blocks = (np.ascontiguousarray(block, np.float32) for block in blocks)
    best = Neighbours.none(len(queries), k)
    first = 0
    if gpu is not None:
        return best.merge(_search_on(gpu, queries, blocks, k, metric))
    import faiss  # The import is here, because a search on a GPU does not need FAISS.

    from pipeline.index.faiss_types import untyped
    from pipeline.index.format import METRICS

    # This setting holds for all later searches of FAISS in this process.
    untyped(faiss).cvar.distance_compute_blas_database_bs = FAISS_ROWS
    heap = faiss.ResultHeap(len(queries), k, keep_max=metric == "inner_product")
    for block in blocks:
        require_finite("exact search", f"from row {first} on, vectors", block)
        values, rows = faiss.knn(queries, block, min(k, len(block)), metric=METRICS[metric])
        heap.add_result(values, rows + first)
        first += len(block)
    heap.finalize()
    return best.merge(Neighbours.of_faiss(heap.D, heap.I, metric))


def _search_on(
    gpu: "torch.device", queries: np.ndarray, blocks: Iterable[np.ndarray], k: int, metric: str
) -> Neighbours:
    """Find the `k` nearest vectors of the `queries` in all `blocks` on a GPU. Rows with equal scores are in any order.

    The CPU waits for the GPU only at the end. Raises IntegrityError that names the first vector with NaN or infinity.
    """
    import torch

    asked = upload(queries, gpu)
    finite = []
    first = 0
    best_scores = torch.full((len(queries), k), -torch.inf, device=gpu)
    best_rows = torch.full((len(queries), k), -1, device=gpu)

    def search(rows: slice) -> None:
        nonlocal best_scores, best_rows
        vectors = upload(block[rows], gpu)
        lengths = vectors.square().sum(dim=1)
        are_finite = vectors.isfinite().all(dim=1)
        merged = []
        for start in range(0, len(queries), QUERY_ROWS):
            some = slice(start, start + QUERY_ROWS)
            scores = asked[some] @ vectors.T
            if metric == "euclidean":
                scores.mul_(2).sub_(asked[some].square().sum(dim=1, keepdim=True)).sub_(lengths)
            nearest = scores.topk(min(k, len(vectors)), dim=1)
            best = torch.cat([best_scores[some], nearest.values], dim=1).topk(k, dim=1)
            both = torch.cat([best_rows[some], nearest.indices + (first + rows.start)], dim=1)
            merged.append((best.values, both.gather(1, best.indices)))
        # The state changes only here. If the block does not fit into the GPU's memory, this function fails before this
        # line, and is called again with smaller parts.
        best_scores, best_rows = map(torch.cat, zip(*merged, strict=True))
        finite.append(are_finite)

    batches = OomBatcher(BLOCK_ROWS, "vector")  # The batch is halved if the GPU's memory is full.
    with full_float32():
        for block in blocks:
            batches.map(search, len(block))
            first += len(block)
    if finite:
        are_finite = torch.cat(finite).cpu().numpy()
        require_finite("exact search", "vectors", np.where(are_finite, np.float32(0), np.float32(np.inf)))
    return Neighbours(best_rows.cpu().numpy(), best_scores.cpu().numpy())

"""Vectors that may not fit into memory, in blocks and by row, and exact search over them without an index: the truth
that an index is measured against.

Each block is one product of matrices in single precision, by FAISS or on a GPU, of which the best k are kept. Scores
that differ by less than single precision resolves may change places. Equal ones come by ascending row; which of them
are the last of the k is left open.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pipeline.compute.device import OomBatcher, full_float32, upload
from pipeline.compute.lazy_rows import ChosenRows
from pipeline.compute.precision import require_finite

if TYPE_CHECKING:
    import torch

BLOCK_ROWS = 1 << 16
"""Vectors in one block, and in one product."""
QUERY_ROWS = 1 << 10
"""Queries in one product on a GPU."""


class Vectors(Protocol):
    """`count` vectors of `dim` numbers; row i is the same vector in every pass."""

    count: int
    dim: int

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all vectors in order, as (n_i, dim) float32."""
        ...

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors (k, dim) float32 of the ascending `rows` (k,)."""
        ...


class ArrayVectors:
    """The rows of an array (n, dim) float32, which may be read from files on request."""

    def __init__(self, array: np.ndarray | ChosenRows) -> None:
        self.array = array
        self.count, self.dim = array.shape

    def blocks(self) -> Iterator[np.ndarray]:
        return (self.array[start : start + BLOCK_ROWS] for start in range(0, self.count, BLOCK_ROWS))

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self.array[rows]


def evenly_spaced(n: int, most: int) -> np.ndarray:
    """Return at most `most` of the rows 0 to n - 1, evenly spaced from the first to the last."""
    return np.linspace(0, n - 1, min(n, most)).astype(np.int64)


@dataclass(frozen=True)
class Neighbours:
    """The nearest of each query: `rows` (q, k) int64 and `scores` (q, k) float32, the greater the better.

    A score is the inner product, or minus the squared distance. Where there are fewer than k vectors, the rest is
    row -1 with score -inf.
    """

    rows: np.ndarray
    scores: np.ndarray

    @classmethod
    def none(cls, queries: int, k: int) -> "Neighbours":
        return cls(np.full((queries, k), -1, np.int64), np.full((queries, k), -np.inf, np.float32))

    @classmethod
    def of_faiss(cls, values: np.ndarray, rows: np.ndarray, metric: str) -> "Neighbours":
        """FAISS's answer, whose `values` are products, or distances."""
        scores = -values if metric == "euclidean" else values
        return cls(rows, np.where(rows >= 0, scores, -np.inf))

    def merge(self, other: "Neighbours") -> "Neighbours":
        """The best k of both; of equal scores the lower row, and what is not there last."""
        rows, scores = np.hstack([self.rows, other.rows]), np.hstack([self.scores, other.scores])
        best = np.lexsort((rows, -scores))[:, : self.rows.shape[1]]
        return Neighbours(np.take_along_axis(rows, best, axis=1), np.take_along_axis(scores, best, axis=1))

    def of(self, query: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows (n,) and scores (n,) of one query, n being at most k: those that are there."""
        there = self.rows[query] >= 0
        return self.rows[query][there], self.scores[query][there]

    def renumber(self, ids: np.ndarray) -> "Neighbours":
        """The same with `ids[row]` in place of each row that is there."""
        rows, there = self.rows.copy(), self.rows >= 0
        rows[there] = ids[rows[there]]
        return Neighbours(rows, self.scores)


def search_exact(
    queries: np.ndarray, blocks: Iterable[np.ndarray], k: int, metric: str, gpu: "torch.device | None" = None
) -> Neighbours:
    """The `k` nearest of each of the `queries` (q, c) among the rows of all `blocks` (n_i, c), float32.

    Rows count from 0 through the blocks. Raises IntegrityError naming a row that is not finite.
    """
    require_finite("exact search", "queries", queries)
    queries = np.ascontiguousarray(queries, np.float32)
    blocks = (np.ascontiguousarray(block, np.float32) for block in blocks)
    best, first = Neighbours.none(len(queries), k), 0
    if gpu is not None:
        return best.merge(_search_on(gpu, queries, blocks, k, metric))
    import faiss  # which a search on a GPU does without

    from pipeline.index.format import METRICS

    for block in blocks:
        require_finite("exact search", f"from row {first} on, vectors", block)
        values, rows = faiss.knn(queries, block, min(k, len(block)), metric=METRICS[metric])
        best = best.merge(Neighbours.of_faiss(values, rows + first, metric))
        first += len(block)
    return best


def _search_on(
    gpu: "torch.device", queries: np.ndarray, blocks: Iterable[np.ndarray], k: int, metric: str
) -> Neighbours:
    """Find the nearest among all `blocks`, in any order if scores are equal. The GPU is waited for only at the end."""
    import torch

    asked, finite, first = upload(queries, gpu), [], 0
    best_scores = torch.full((len(queries), k), -torch.inf, device=gpu)
    best_rows = torch.full((len(queries), k), -1, device=gpu)

    def search(rows: slice) -> None:
        nonlocal best_scores, best_rows
        vectors = upload(block[rows], gpu)
        lengths, are_finite, merged = vectors.square().sum(dim=1), vectors.isfinite().all(dim=1), []
        for start in range(0, len(queries), QUERY_ROWS):
            some = slice(start, start + QUERY_ROWS)
            scores = asked[some] @ vectors.T
            if metric == "euclidean":
                scores.mul_(2).sub_(asked[some].square().sum(dim=1, keepdim=True)).sub_(lengths)
            nearest = scores.topk(min(k, len(vectors)), dim=1)
            best = torch.cat([best_scores[some], nearest.values], dim=1).topk(k, dim=1)
            both = torch.cat([best_rows[some], nearest.indices + (first + rows.start)], dim=1)
            merged.append((best.values, both.gather(1, best.indices)))
        # Only here does anything change: vectors that do not fit are searched again in parts.
        best_scores, best_rows = map(torch.cat, zip(*merged, strict=True))
        finite.append(are_finite)

    batches = OomBatcher(BLOCK_ROWS, "vector")  # halved where the GPU's memory is full
    with full_float32():
        for block in blocks:
            batches.map(search, len(block))
            first += len(block)
    if finite:
        places = torch.cat(finite).cpu().numpy()
        require_finite("exact search", "vectors", np.where(places, np.float32(0), np.float32(np.inf)))
    return Neighbours(best_rows.cpu().numpy(), best_scores.cpu().numpy())

"""Exact search without an index, over blocks of vectors: the truth that an index is measured against.

Each block is one product of matrices in single precision, by FAISS or on a GPU, of which the best k are kept. Scores
that differ by less than single precision resolves may change places. Equal ones come by ascending row; which of them
are the last of the k is left open.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.device import OomBatcher, full_float32, upload
from pipeline.precision import require_finite

if TYPE_CHECKING:
    import torch

BLOCK_ROWS, QUERY_ROWS = 1 << 16, 1 << 10
"""Vectors and, on a GPU, queries of one product."""


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
    best, first = Neighbours.none(len(queries), k), 0
    batches = OomBatcher(BLOCK_ROWS, "vector")  # halved where a GPU's memory is full
    for block in blocks:
        block = np.ascontiguousarray(block, np.float32)
        require_finite("exact search", f"from row {first} on, vectors", block)

        def search(rows: slice, block=block, first=first) -> Neighbours:
            part = block[rows]
            if gpu is None:
                places, scores = _by_faiss(queries, part, k, metric)
            else:
                places, scores = _by_torch(queries, part, k, metric, gpu)
            return Neighbours(places + first + rows.start, scores)

        for neighbours in batches.map(search, len(block)):
            best = best.merge(neighbours)
        first += len(block)
    return best


def _by_faiss(queries: np.ndarray, vectors: np.ndarray, k: int, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """(q, k) rows of the nearest, best first, and their scores; fewer where there are fewer vectors."""
    import faiss  # which a search on a GPU does without

    from pipeline.index.format import METRICS

    scores, rows = faiss.knn(queries, vectors, min(k, len(vectors)), metric=METRICS[metric])
    return rows, (-scores if metric == "euclidean" else scores)


def _by_torch(
    queries: np.ndarray, vectors: np.ndarray, k: int, metric: str, gpu: "torch.device"
) -> tuple[np.ndarray, np.ndarray]:
    """The same on a GPU."""
    there = upload(vectors, gpu)
    lengths = there.square().sum(dim=1)
    rows, values = [], []
    for start in range(0, len(queries), QUERY_ROWS):
        asked = upload(queries[start : start + QUERY_ROWS], gpu)
        with full_float32():
            scores = asked @ there.T
        if metric == "euclidean":
            scores.mul_(2).sub_(asked.square().sum(dim=1, keepdim=True)).sub_(lengths)
        best = scores.topk(min(k, len(vectors)), dim=1)
        rows.append(best.indices.cpu().numpy())
        values.append(best.values.cpu().numpy())
    return np.concatenate(rows), np.concatenate(values)

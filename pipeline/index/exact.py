"""Exact search without an index: blocks of vectors, one matrix product each, and a running top k.

A block is first searched in low precision, on a GPU where one is given, which finds every vector that can be among the
nearest when the known bound of its rounding is allowed for; what it finds is scored again in double precision. So the
answer does not depend on the precision, the blocks, the device, the threads or the BLAS: neighbours come by descending
score, equal scores by ascending row. `faiss.IndexFlatIP` gives the same rows wherever two scores differ by more than
single precision resolves.
"""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.device import OomBatcher, upload
from pipeline.precision import fast_at_bfloat16, require_finite

if TYPE_CHECKING:
    import torch

FIRST_ROWS, PIECE_ROWS, SCORE_ROWS = 8192, 65536, 8192
"""Rows of the first piece of a block, of the largest, and of one table of bfloat16 scores."""
QUERY_ROWS = 1024
"""Queries that are searched together."""
MARGIN = 6
"""Neighbours more than k that single precision is asked for."""
CANDIDATES = 1024
"""A query with more candidates in one piece than this is scored against the whole piece."""
TORCH_PAYS = 1 << 36
"""Multiplications from which importing torch (about 1.5 s) is repaid by its bfloat16 products."""


@dataclass(frozen=True)
class Neighbours:
    """The nearest of each query: `rows` (q, k) int64 and `scores` (q, k) float32, the greater the better.

    A score is the inner product, or minus the squared distance. Where there are fewer than k vectors, the rest is
    row -1 with score -inf.
    """

    rows: np.ndarray
    scores: np.ndarray


def search_exact(
    queries: np.ndarray, blocks: Iterable[np.ndarray], k: int, metric: str, gpu: "torch.device | None" = None
) -> Neighbours:
    """The `k` nearest of each of the `queries` (q, c) among the rows of all `blocks` (n_i, c), float32.

    Rows count from 0 through the blocks. Raises IntegrityError naming a row that is not finite.
    """
    require_finite("exact search", "queries", queries)
    starts, portions = range(0, len(queries), QUERY_ROWS), OomBatcher(PIECE_ROWS, "vector")
    groups = [_Search(queries[first : first + QUERY_ROWS], k, metric, gpu) for first in starts]
    seen = 0
    for block in blocks:
        start = 0
        while start < len(block):
            piece = block[start : start + min(PIECE_ROWS, max(FIRST_ROWS, seen + start))]
            prepared = _Piece(np.ascontiguousarray(piece, np.float32), seen + start)
            if gpu is None:
                for group in groups:
                    group.add(prepared)
            else:
                portions.map(lambda rows, whole=prepared: _add_on_gpu(groups, whole.cut(rows)), len(piece))
            start += len(piece)
        seen += len(block)
    rows, scores = (np.concatenate([getattr(group, name) for group in groups]) for name in ("rows", "scores"))
    return Neighbours(rows, scores.astype(np.float32))


def _add_on_gpu(groups: "Sequence[_Search]", piece: "_Piece") -> None:
    """Search `piece` for all `groups`; none changes before the GPU has had enough memory for all of them."""
    found = [group.find_on_gpu(piece) for group in groups]
    for group, candidates in zip(groups, found, strict=True):
        group.merge(piece, *candidates)


class _Piece:
    """Some vectors, the row of their first, the greatest of their lengths, and, when they are needed, copies in
    bfloat16 and on a GPU."""

    def __init__(self, vectors: np.ndarray, first: int) -> None:
        self.vectors, self.first = vectors, first
        self.length = float(np.sqrt(np.einsum("ij,ij->i", vectors, vectors).max(initial=0)))
        if not np.isfinite(self.length):
            require_finite("exact search", f"from row {first} on, vectors", vectors)
        self._halves = self._uploaded = None

    def cut(self, rows: slice) -> "_Piece":
        """The vectors `rows` of it alone."""
        if rows == slice(0, len(self.vectors)):
            return self
        self._uploaded = None  # a GPU has no room for it
        return _Piece(self.vectors[rows], self.first + rows.start)

    def on(self, gpu: "torch.device") -> "torch.Tensor":
        if self._uploaded is None:
            self._uploaded = upload(self.vectors, gpu)
        return self._uploaded

    def halves(self):
        if self._halves is None:
            import torch

            self._halves = torch.from_numpy(self.vectors).bfloat16()
        return self._halves


_Nearest = Callable[[_Piece, int], tuple[np.ndarray, np.ndarray]]


class _Search:
    """The running top k of some queries: `scores` (q, k) float64 descending, `rows` (q, k)."""

    def __init__(self, queries: np.ndarray, k: int, metric: str, gpu: "torch.device | None") -> None:
        self.queries, self.k, self.metric, self.gpu = np.ascontiguousarray(queries, np.float32), k, metric, gpu
        self.lengths = np.linalg.norm(self.queries, axis=1)
        self.scores = np.full((len(queries), k), -np.inf)
        self.rows = np.full((len(queries), k), -1, np.int64)
        self.seconds: dict[str, list[float]] = {"float32": [], "bfloat16": []}
        self._halves = self._uploaded = None

    def add(self, piece: _Piece) -> None:
        """Search `piece` in the precision that has been the faster one."""
        bound = self.scores[:, -1] - self._rounding("bfloat16", piece)
        halves = self._halves_pay(piece) and bound.min(initial=np.inf) > 0
        start = time.perf_counter()
        found = self._by_bfloat16(piece, bound) if halves else self._by_float32(piece, self._by_faiss)
        self.merge(piece, *found)
        self.seconds["bfloat16" if halves else "float32"].append((time.perf_counter() - start) / len(piece.vectors))

    def _rounding(self, precision: str, piece: _Piece) -> np.ndarray:
        """(q,) by how much a score of `precision` can differ from the true one."""
        if precision == "bfloat16":  # both factors and the result are rounded to 8 bits, by 2**-9 of their size at most
            return (2.0**-8 + 2.0**-9 + 2.0**-11) * self.lengths * piece.length
        lengths = self.lengths + piece.length if self.metric == "euclidean" else np.sqrt(self.lengths * piece.length)
        return (self.queries.shape[1] + 2) * 2.0**-23 * lengths**2

    def _halves_pay(self, piece: _Piece) -> bool:
        measured = self.seconds["bfloat16"]
        if len(measured) > 1:  # the first measurement holds torch's own preparations
            return min(measured) < min(self.seconds["float32"])
        work = self.queries.size * piece.first  # so far; as much is likely still to come
        if self.metric != "inner_product" or len(self.queries) < 64 or piece.first < FIRST_ROWS:
            return False
        if "torch" not in sys.modules and work < TORCH_PAYS:
            return False
        import torch

        return fast_at_bfloat16(torch.device("cpu"))

    def find_on_gpu(self, piece: _Piece) -> tuple[np.ndarray, np.ndarray]:
        """Candidates as pairs (query, row of the piece)."""
        return self._by_float32(piece, self._by_gpu)

    def _by_faiss(self, piece: _Piece, asked: int) -> tuple[np.ndarray, np.ndarray]:
        """(q, asked) the greatest scores, best first, and their rows of the piece."""
        import faiss  # which a search on a GPU does without

        from pipeline.index.format import METRICS

        scores, rows = faiss.knn(self.queries, piece.vectors, asked, metric=METRICS[self.metric])
        return (-scores if self.metric == "euclidean" else scores), rows

    def _by_gpu(self, piece: _Piece, asked: int) -> tuple[np.ndarray, np.ndarray]:
        """The same."""
        from pipeline.index.device_search import nearest_on

        if self._uploaded is None:
            self._uploaded = upload(self.queries, self.gpu)
        return nearest_on(self._uploaded, piece.on(self.gpu), asked, self.metric)

    def _by_float32(self, piece: _Piece, nearest: _Nearest) -> tuple[np.ndarray, np.ndarray]:
        """Candidates as pairs (query, row of the piece)."""
        asked = min(self.k + MARGIN, len(piece.vectors))
        scores, rows = nearest(piece, asked)
        slack = self._rounding("float32", piece)
        worst = scores[:, min(self.k, asked) - 1] - slack if asked >= self.k else np.full(len(scores), -np.inf)
        bound = np.maximum(self.scores[:, -1], worst) - slack
        crowded = (scores[:, -1] >= bound) & (asked < len(piece.vectors))
        wanted = (scores >= bound[:, None]) & ~crowded[:, None]
        query, column = np.nonzero(wanted)
        return self._with_crowded(piece, query, rows[query, column], np.flatnonzero(crowded))

    def _by_bfloat16(self, piece: _Piece, bound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same; `bound` (q,) is positive, so that bit patterns compare like the numbers that they stand for."""
        import torch

        if self._halves is None:
            self._halves = torch.from_numpy(self.queries).bfloat16()
            self._table = torch.empty(len(self.queries) * SCORE_ROWS, dtype=torch.bfloat16)
        least = (bound.astype(np.float32).view(np.uint32) >> 16).astype(np.int16)
        halves, queries, rows = piece.halves(), [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for start in range(0, len(halves), SCORE_ROWS):
            part = halves[start : start + SCORE_ROWS]
            table = self._table[: len(self.queries) * len(part)].view(len(self.queries), len(part))
            bits = torch.mm(self._halves, part.T, out=table).view(torch.int16).numpy()
            some = np.flatnonzero(bits.max(axis=1) >= least)
            place, column = np.divmod(np.flatnonzero(bits[some] >= least[some, None]), len(part))
            queries.append(some[place])
            rows.append(column + start)
        query, row = np.concatenate(queries), np.concatenate(rows)
        crowded = np.bincount(query, minlength=len(self.queries)) > CANDIDATES
        keep = ~crowded[query]
        return self._with_crowded(piece, query[keep], row[keep], np.flatnonzero(crowded))

    def _with_crowded(
        self, piece: _Piece, query: np.ndarray, row: np.ndarray, crowded: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The candidates with the k best of each `crowded` query, found among all rows of the piece."""
        for one in crowded:
            scores = self._score(self.queries[one, None], piece.vectors)
            best = np.argsort(-scores, kind="stable")[: self.k]
            query, row = np.append(query, np.full(len(best), one)), np.append(row, best)
        return query, row

    def _score(self, queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """The scores of pairs of rows in double precision, each as if it were alone."""
        scores = np.empty(len(vectors))
        for start in range(0, len(vectors), PIECE_ROWS // 8):
            part = slice(start, start + PIECE_ROWS // 8)
            a, b = (x[part] if len(x) > 1 else x for x in (queries, vectors))
            a, b = np.broadcast_arrays(a.astype(np.float64), b.astype(np.float64))
            if self.metric == "euclidean":
                scores[part] = -np.square(a - b).sum(axis=1)
            else:
                scores[part] = np.multiply(a, b).sum(axis=1)
        return scores

    def merge(self, piece: _Piece, query: np.ndarray, row: np.ndarray) -> None:
        """Put the candidates among the running top k of their queries."""
        if not len(query):
            return
        scores = self._score(self.queries[query], piece.vectors[row])
        changed = np.unique(query)
        queries = np.concatenate([np.repeat(changed, self.k), query])
        scores = np.concatenate([self.scores[changed].ravel(), scores])
        rows = np.concatenate([self.rows[changed].ravel(), row + piece.first])
        order = np.lexsort((rows, -scores, queries))
        starts = np.searchsorted(queries[order], changed)
        best = order[starts[:, None] + np.arange(self.k)]
        self.scores[changed], self.rows[changed] = scores[best], rows[best]

"""Moments of mapped views: the one further pass over data that a feature map costs."""

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.linalg.blas import ssyrk

from pipeline.models.linear.accumulation import sum_by_owner
from pipeline.models.linear.feature_maps import FeatureMap, FeatureMaps, Rows
from pipeline.models.linear.moments import Moments, mirror

OUTER_ROWS = 256
"""Of an outer product that is subtracted at once: the cache holds so many."""


@dataclass(frozen=True)
class ViewBlock:
    """Pairs: images x (b, D) float32, their sentences y (m, d), and owners (m,), the row of x that each is of."""

    x: np.ndarray
    y: sparse.csr_array
    owners: np.ndarray


class MappedAccumulator:
    """Sums, over blocks, the products of P (b, p), mapped images, and Q (m, q), mapped sentences, with all else."""

    def __init__(self, known: Moments, maps: FeatureMaps) -> None:
        p, q = (one.dim if one else 0 for one in (maps.image, maps.text))
        dim_x, dim_y = len(known.mean_x), len(known.mean_y)
        self._known, self._maps = known, maps
        self._center = known.mean_x.astype(np.float32)
        self._shift_p: np.ndarray | None = None
        self._shift_q = np.zeros(q, np.float32)
        self._n = 0.0
        self._sum_x, self._sum_p, self._sum_q = np.zeros(dim_x), np.zeros(p), np.zeros(q)
        self._x_pq = np.zeros((dim_x, p + q), np.float32)
        self._y_p, self._y_q = np.zeros((dim_y, p), np.float32), np.zeros((dim_y, q), np.float32)
        self._pp = np.zeros((p, p), np.float32, order="F")
        self._qq = np.zeros((q, q), np.float32, order="F")
        self._pq = np.zeros((p, q), np.float32)

    def add(self, block: ViewBlock) -> None:
        """Add the pairs of a block; images without a sentence add nothing."""
        counts = np.bincount(block.owners, minlength=len(block.x)).astype(np.float32)
        kept = counts > 0
        if not kept.any():
            return
        x, owners = block.x, block.owners
        if not kept.all():
            x, owners, counts = x[kept], (np.cumsum(kept) - 1)[owners], counts[kept]
        z = x - self._center
        p, q = self._map(self._maps.image, x), self._map(self._maps.text, block.y)
        if self._shift_p is None:
            # About the first block's mean, as in the first pass: sums about zero lose small variances.
            self._shift_p, self._shift_q = p.mean(axis=0), q.mean(axis=0)
        p -= self._shift_p
        q -= self._shift_q
        by_image, weighted = sum_by_owner(q, owners, len(x)), counts[:, None] * p
        self._n += counts.sum()
        self._sum_x += counts @ z
        self._sum_p += counts @ p
        self._sum_q += q.sum(axis=0)
        _add_product(self._x_pq, z, np.hstack([weighted, by_image]))
        if self._maps.image:
            self._y_p += sum_by_owner(block.y, owners, len(x)).T @ p
            _add_product(self._pq, p, by_image)
            p *= np.sqrt(counts)[:, None]
            self._pp = ssyrk(1.0, p.T, beta=1.0, c=self._pp, overwrite_c=1)
        if self._maps.text:
            self._y_q += block.y.T @ q
            self._qq = ssyrk(1.0, q.T, beta=1.0, c=self._qq, overwrite_c=1)

    def _map(self, feature_map: FeatureMap | None, rows: Rows) -> np.ndarray:
        return feature_map(rows) if feature_map else np.zeros((rows.shape[0], 0), np.float32)

    def result(self) -> Moments:
        """The moments of all the pairs of `known`, which must be added; the accumulator must not be used afterwards."""
        known, n = self._known, self._known.n
        if not np.isclose(self._n, n):
            raise ValueError(f"the second pass met {self._n:g} pairs, the first {n:g}")
        root = np.sqrt(n)
        x, p, q = (total / root for total in (self._sum_x, self._sum_p, self._sum_q))
        xp, xq = np.split(_subtract_outer(self._x_pq, x, np.concatenate([p, q])), [len(p)], axis=1)
        yp, yq = (_subtract_outer(total, root * known.mean_y, mean) for total, mean in ((self._y_p, p), (self._y_q, q)))
        pp, qq = _subtract_outer(mirror(self._pp), p, p), _subtract_outer(mirror(self._qq), q, q)
        pq = _subtract_outer(self._pq, p, q)
        keep_x, keep_y = (one is None or one.keep for one in (self._maps.image, self._maps.text))
        mean_p, mean_q = self._shift_p + p / root, self._shift_q + q / root
        return Moments(
            n,
            np.concatenate([known.mean_x, mean_p]) if keep_x else mean_p,
            np.concatenate([known.mean_y, mean_q]) if keep_y else mean_q,
            np.block([[known.xx, xp], [xp.T, pp]]) if keep_x else pp,
            _assemble(known.xy, xq, yp.T, pq, keep_x, keep_y),
            np.block([[known.yy, yq], [yq.T, qq]]) if keep_y else qq,
        )


def _add_product(total: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """total += left' right, in place: numpy would make a second matrix of total's size first."""
    import torch  # takes seconds to import, and only a fit with feature maps needs it

    torch.from_numpy(total).addmm_(torch.from_numpy(left).T, torch.from_numpy(right))


def _subtract_outer(total: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """total - left right', in place."""
    for start in range(0, len(left), OUTER_ROWS):
        rows = slice(start, start + OUTER_ROWS)
        total[rows] -= np.outer(left[rows].astype(np.float32), right.astype(np.float32))
    return total


def _assemble(xy: np.ndarray, xq: np.ndarray, py: np.ndarray, pq: np.ndarray, keep_x: bool, keep_y: bool) -> np.ndarray:
    """The cross block between the kept columns of both views."""
    rows = [row if keep_y else row[1:] for row, kept in (([xy, xq], keep_x), ([py, pq], True)) if kept]
    return np.block(rows)

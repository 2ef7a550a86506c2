"""Moments of mapped views: the second pass over the data that a feature map needs."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg.blas import ssyrk

from pipeline.models.linear.accumulation import sum_by_owner
from pipeline.models.linear.feature_maps import FeatureMap, FeatureMaps
from pipeline.models.linear.moments import Moments, mirror
from pipeline.models.linear.views import Rows, cross

OUTER_ROWS = 256
"""Rows of an outer product subtracted at once: they fit in the cache."""


@dataclass(frozen=True)
class ViewBlock:
    """Pairs: images x (b, D) float32, their sentences y (m, d), and owners (m,), the row of x of each."""

    x: np.ndarray
    y: Rows
    owners: np.ndarray

    def images(self, rows: slice) -> "ViewBlock":
        """The images `rows`, from a start to a stop, with their sentences."""
        if rows == slice(0, len(self.x)):
            return self
        own = (self.owners >= rows.start) & (self.owners < rows.stop)
        return ViewBlock(self.x[rows], self.y[own], self.owners[own] - rows.start)


class MappedAccumulator:
    """Sums over blocks the products of mapped images P (b, p) and mapped sentences Q (m, q) with each other and with
    all else."""

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
            # As in the first pass, centred about the first block's mean: sums about zero lose small variances.
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
            self._y_p += cross(sum_by_owner(block.y, owners, len(x)), p)
            _add_product(self._pq, p, by_image)
            p *= np.sqrt(counts)[:, None]
            self._pp = ssyrk(1.0, p.T, beta=1.0, c=self._pp, overwrite_c=1)
        if self._maps.text:
            self._y_q += cross(block.y, q)
            self._qq = ssyrk(1.0, q.T, beta=1.0, c=self._qq, overwrite_c=1)

    def _map(self, feature_map: FeatureMap | None, rows: Rows) -> np.ndarray:
        return feature_map(rows) if feature_map else np.zeros((rows.shape[0], 0), np.float32)

    def result(self) -> Moments:
        """The moments of all pairs of `known`; the accumulator must not be used afterwards. ValueError if it has not
        seen them all."""
        known, n = self._known, self._known.n
        if not np.isclose(self._n, n):
            raise ValueError(f"the second pass saw {self._n:g} pairs, the first {n:g}")
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
            np.block([row[not keep_y :] for row in [[known.xy, xq], [yp.T, pq]][not keep_x :]]),
            np.block([[known.yy, yq], [yq.T, qq]]) if keep_y else qq,
        )


def _add_product(total: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """total += left' right, in place: numpy would first make a second matrix of total's size."""
    import torch  # takes seconds to import, and only a fit with feature maps needs it

    torch.from_numpy(total).addmm_(torch.from_numpy(left).T, torch.from_numpy(right))


def _subtract_outer(total: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """total - left right', in place."""
    for start in range(0, len(left), OUTER_ROWS):
        rows = slice(start, start + OUTER_ROWS)
        total[rows] -= np.outer(left[rows].astype(np.float32), right.astype(np.float32))
    return total

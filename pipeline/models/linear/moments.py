"""Moments: the sums from which every linear model is computed (n, means, X'X, X'Y, Y'Y).

A pair is an image x (D values) and one of its sentences y (d values). X has one row an image, although an image has
several sentences: X'X weights the row by its number of sentences, X'Y has the sum of their vectors. The blocks are
centred about the mean, so that single precision suffices whatever the mean is; adding and subtracting moments corrects
for the difference of their means.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np

from pipeline.errors import InputError

BLOCK_ROWS = 4096
"""Number of images in one block: enough for BLAS, few enough for single precision."""
SHIFT_ROWS = 512
"""Number of rows whose mean is the provisional mean, and of rows in one task of its subtraction."""
SMALL = 1024
"""Number of columns of both views up to which sums are in double precision, which then costs very little."""
ROUNDING = 1e-6
"""Correlations below this are rounding. Variances below this share of the greatest variance are rounding, too."""
TILE = 256
"""Number of rows of a block that are mirrored or added at a time."""


@dataclass(frozen=True)
class Moments:
    """Sums over n weighted pairs: n, mean_x (D,), mean_y (d,) and the centred blocks xx (D, D), xy (D, d), yy (d, d).

    They can be added, subtracted (to leave a shard out), scaled (joint training with rows scaled by beta is
    `target + auxiliary.scaled(beta**2)`) and restricted to columns.
    """

    n: float
    mean_x: np.ndarray
    mean_y: np.ndarray
    xx: np.ndarray
    xy: np.ndarray
    yy: np.ndarray

    @classmethod
    def zero(cls, dim_x: int, dim_y: int) -> "Moments":
        """Return the moments of no pairs."""
        blocks = (np.zeros(shape, np.float32) for shape in ((dim_x, dim_x), (dim_x, dim_y), (dim_y, dim_y)))
        return cls(0.0, np.zeros(dim_x), np.zeros(dim_y), *blocks)

    def __add__(self, other: "Moments") -> "Moments":
        return self._combine(other, +1)

    def absorb(self, other: "Moments") -> "Moments":
        """Return the sum, to the last bit, in the blocks of these moments, which must not be used afterwards."""
        return self._combine(other, +1, (self.xx, self.xy, self.yy))

    def __sub__(self, other: "Moments") -> "Moments":
        """Return the moments without the pairs of `other`, which must be among these pairs."""
        return self._combine(other, -1)

    def scaled(self, weight: float) -> "Moments":
        """Return the moments with the weight of every pair multiplied by `weight`."""
        blocks = (block * float(weight) for block in (self.xx, self.xy, self.yy))
        return Moments(self.n * weight, self.mean_x, self.mean_y, *blocks)

    def select_x(self, columns: np.ndarray) -> "Moments":
        """Return the moments for some columns of x, such as one encoder of several."""
        xx, xy = (np.ascontiguousarray(part) for part in (self.xx[columns][:, columns], self.xy[columns]))
        return replace(self, mean_x=self.mean_x[columns], xx=xx, xy=xy)

    def select_y(self, columns: np.ndarray) -> "Moments":
        """Return the moments for some columns of y, such as one text encoder of several, or a smaller vocabulary."""
        xy, yy = (np.ascontiguousarray(part) for part in (self.xy[:, columns], self.yy[columns][:, columns]))
        return replace(self, mean_y=self.mean_y[columns], xy=xy, yy=yy)

    def projected_x(self, basis: np.ndarray) -> "Moments":
        """Return the moments with x Q in place of x, for a basis Q (D, r)."""
        return replace(self, mean_x=self.mean_x @ basis, xx=basis.T @ self.xx @ basis, xy=basis.T @ self.xy)

    def scaled_x(self, factors: np.ndarray) -> "Moments":
        """Return the moments with the columns of x multiplied by `factors` (D,)."""
        columns = factors.astype(self.xx.dtype)
        xx, xy = self.xx * columns * columns[:, None], self.xy * columns[:, None]
        return replace(self, mean_x=self.mean_x * factors, xx=xx, xy=xy)

    def scaled_y(self, factors: np.ndarray) -> "Moments":
        """Return the moments with the columns of y multiplied by `factors` (d,)."""
        columns = factors.astype(self.yy.dtype)
        yy, xy = self.yy * columns * columns[:, None], self.xy * columns
        return replace(self, mean_y=self.mean_y * factors, yy=yy, xy=xy)

    def expanded(self, x: "Expansion", y: "Expansion") -> "Moments":
        """Return the moments of the expanded views, from products of blocks, without the data."""
        yx = y.rows(x.rows(self.xy).T)  # (d', D')
        return Moments(
            self.n,
            x.rows(self.mean_x[:, None].astype(np.float32))[:, 0].astype(float),
            y.rows(self.mean_y[:, None].astype(np.float32))[:, 0].astype(float),
            x.rows(x.rows(self.xx).T),
            np.ascontiguousarray(yx.T),
            y.rows(y.rows(self.yy).T),
        )

    def require_correlation(self) -> None:
        """Raise InputError if no model can be fitted: fewer than two pairs, a view that is not finite or is constant up
        to rounding, or views that are uncorrelated up to rounding."""
        if self.n < 2:
            raise InputError(f"a linear model needs at least 2 pairs, not {self.n:g}; check the train split")
        for name, block, mean in (("image", self.xx, self.mean_x), ("text", self.yy, self.mean_y)):
            if not np.isfinite(block).all():
                raise InputError(
                    f"the moments of the {name} view are not finite, because a row is not, or is too large for single"
                    " precision; look for an outlier in its rows, or scale them to unit length (normalise: [l2])"
                )
            if (block.diagonal() <= self.n * (np.finfo(np.float32).eps * mean) ** 2).all():
                raise InputError(f"the {name} view is constant over all {self.n:g} training pairs; check its encoder")
        # A nearly constant column counts as if it varied a little, so that its rounding is not taken for a correlation.
        x, y = (np.maximum(one.diagonal().astype(float), ROUNDING * one.diagonal().max()) for one in (self.xx, self.yy))
        squares = np.einsum("ij,ij,j->i", self.xy, self.xy, 1 / y, dtype=float) @ (1 / x)
        if squares <= self.xy.size * ROUNDING**2:
            raise InputError(
                f"the image and text views are uncorrelated over all {self.n:g} training pairs, so there is no joint"
                " space. Check that each caption belongs to its image, or use other encoders"
            )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of a file, with half of each symmetric block."""
        return {**vars(self), "n": np.array(self.n), "xx": pack(self.xx), "yy": pack(self.yy)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Moments":
        """Restore moments from the arrays of `to_arrays`."""
        mean_x, mean_y = np.array(arrays["mean_x"]), np.array(arrays["mean_y"])
        xx, yy = unpack(arrays["xx"], len(mean_x)), unpack(arrays["yy"], len(mean_y))
        return cls(float(arrays["n"]), mean_x, mean_y, xx, np.array(arrays["xy"]), yy)

    def _combine(
        self, other: "Moments", sign: int, into: tuple[np.ndarray | None, ...] = (None, None, None)
    ) -> "Moments":
        if other.n == 0:
            return self
        if self.n == 0 and sign > 0:
            return other
        n = self.n + sign * other.n
        if n <= 0:
            return Moments.zero(len(self.mean_x), len(self.mean_y))
        mean_x = (self.n * self.mean_x + sign * other.n * other.mean_x) / n
        mean_y = (self.n * self.mean_y + sign * other.n * other.mean_y) / n
        # Chan, Golub and LeVeque 1983: centred sums about two means differ by a product of the means' difference.
        root = np.sqrt(self.n * other.n / n)
        dx = (root * (self.mean_x - other.mean_x)).astype(self.xx.dtype)
        dy = (root * (self.mean_y - other.mean_y)).astype(self.xx.dtype)
        xx = _shifted_sum(self.xx, other.xx, sign, dx, dx, into[0])
        xy = _shifted_sum(self.xy, other.xy, sign, dx, dy, into[1])
        return Moments(n, mean_x, mean_y, xx, xy, _shifted_sum(self.yy, other.yy, sign, dy, dy, into[2]))


@dataclass(frozen=True)
class Expansion:
    """A view that is linear in another view: x becomes [x, xA] with `keep`, else xA, where A is `matrix` (D, p)."""

    matrix: np.ndarray
    keep: bool

    def rows(self, block: np.ndarray) -> np.ndarray:
        """Compute E' block for the map E = [I, A] or A: block (D, k) becomes (D', k)."""
        new = self.matrix.T @ block
        return np.concatenate([block, new]) if self.keep else new

    def pull_back(self, directions: np.ndarray) -> np.ndarray:
        """Compute E directions: directions (D', c) on the expanded view become (D, c) on the view itself."""
        size = len(self.matrix)
        return directions[:size] + self.matrix @ directions[size:] if self.keep else self.matrix @ directions


def _shifted_sum(
    mine: np.ndarray, theirs: np.ndarray, sign: int, left: np.ndarray, right: np.ndarray, into: np.ndarray | None
) -> np.ndarray:
    """Compute mine + sign * (theirs + left right'), in a new block or `into` mine."""
    into = np.empty_like(mine) if into is None else into
    for start in range(0, len(mine), TILE):
        rows = slice(start, start + TILE)
        total = np.outer(left[rows], right)
        total += theirs[rows]
        total *= sign
        total += mine[rows]
        into[rows] = total
    return into


def sum_moments(parts: Iterable[Moments]) -> Moments:
    """Sum `parts`, at least one; two of them are in memory at a time."""
    return reduce(add, parts)


def mirror(upper: np.ndarray) -> np.ndarray:
    """Make a matrix symmetric from its upper triangle, in place, tile by tile, and return it."""
    for i in range(0, len(upper), TILE):
        rows = slice(i, i + TILE)
        diagonal = upper[rows, rows]
        diagonal[:] = np.triu(diagonal) + np.triu(diagonal, 1).T
        for j in range(i + TILE, len(upper), TILE):
            columns = slice(j, j + TILE)
            upper[columns, rows] = upper[rows, columns].T
    return upper


def pack(symmetric: np.ndarray) -> np.ndarray:
    """Return the upper triangle of a symmetric (n, n) matrix, row by row, (n (n + 1) / 2,)."""
    return np.concatenate([row[i:] for i, row in enumerate(symmetric)])


def unpack(packed: np.ndarray, n: int) -> np.ndarray:
    """Restore the symmetric (n, n) matrix of `pack`."""
    full = np.empty((n, n), packed.dtype)
    start = 0
    for i in range(n):
        full[i, i:] = packed[start : start + n - i]
        start += n - i
    return mirror(full)

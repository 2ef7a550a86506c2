"""Moments of image-sentence pairs: the number n of pairs, the means, and the products X'X, X'Y and Y'Y.

Most linear models are computed from moments alone. A pair is an image x (D values) and one of its sentences y (d
values). X has one row per image, although an image may have several sentences. Therefore X'X weights each row with the
number of sentences of the image, and X'Y uses the sum of the sentences' vectors. The products are sums over the pairs,
not means. The products are centred about the means of the pairs, so that single precision suffices even if a mean is
large. When moments are added or subtracted, the products are corrected for the difference of the means.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import InputError

if TYPE_CHECKING:
    from pipeline.models.linear.feature_maps import FeatureMaps

BLOCK_ROWS = 4096
"""Maximum number of images in one block of pairs whose products are summed at once. A block of this size is large
enough for fast products, and small enough for sums in single precision."""
SHIFT_ROWS = 512
"""Number of rows at the beginning of the first block whose mean is the provisional mean. Dense columns are centred
about this mean while products are summed. A thread that subtracts the mean gets this number of rows at a time."""
MAX_DOUBLE_PRECISION_COLUMNS = 1024
"""Maximum number of columns of both views together for which moments are in double precision, which is cheap up to this
size. Moments of more columns are in single precision."""
ROUNDING = 1e-6
"""Greatest root mean square correlation between columns of x and y that `require_correlation` treats as a rounding
error. For this check, variances below this share of the greatest variance of a view are raised to this share."""
TILE = 256
"""Number of rows of a matrix that are mirrored, added or subtracted at a time, so that no second matrix is needed in
memory."""


@dataclass(frozen=True)
class Moments:
    """The moments of weighted pairs: means (D,) and (d,), and centred products xx (D, D), xy (D, d) and yy (d, d).

    `n` is the sum of the weights, which is the number of pairs if all weights are 1. The products are weighted sums
    over the pairs, so `xx / n` is a covariance. Moments can be added, subtracted (to leave out some pairs), scaled, and
    restricted to some columns. Only the method `absorb` may overwrite the moments on which it is called. The results of
    all methods may share arrays with the operands. Joint training with auxiliary rows that are scaled by beta uses
    `target + auxiliary.scaled(beta**2)`.
    """

    n: float
    mean_x: np.ndarray
    mean_y: np.ndarray
    xx: np.ndarray
    xy: np.ndarray
    yy: np.ndarray

    @classmethod
    def zero(cls, dim_x: int, dim_y: int) -> "Moments":
        """Return the moments of no pairs, with zeros in all arrays, for views with `dim_x` and `dim_y` columns."""
        blocks = (np.zeros(shape, np.float32) for shape in ((dim_x, dim_x), (dim_x, dim_y), (dim_y, dim_y)))
        return cls(0.0, np.zeros(dim_x), np.zeros(dim_y), *blocks)

    def __add__(self, other: "Moments") -> "Moments":
        return self._combine(other, +1)

    def absorb(self, other: "Moments") -> "Moments":
        """Return the moments `self + other`. To save memory, the sum may overwrite the arrays of `self`, so `self` must
        not be used afterwards. `other` is not changed."""
        return self._combine(other, +1, (self.xx, self.xy, self.yy))

    def __sub__(self, other: "Moments") -> "Moments":
        """Return the moments of the pairs of `self` without the pairs of `other`. All pairs of `other` must be among
        the pairs of `self`. If no pairs remain, return the moments of no pairs."""
        return self._combine(other, -1)

    def scaled(self, weight: float) -> "Moments":
        """Return the moments with the weight of every pair multiplied by `weight`. The means stay the same."""
        blocks = (block * float(weight) for block in (self.xx, self.xy, self.yy))
        return Moments(self.n * weight, self.mean_x, self.mean_y, *blocks)

    def select_x(self, columns: np.ndarray) -> "Moments":
        """Return the moments for some columns of x. `columns` (k,) are their numbers in the new order, such as the
        columns of one encoder."""
        xx, xy = (np.ascontiguousarray(part) for part in (self.xx[columns][:, columns], self.xy[columns]))
        return replace(self, mean_x=self.mean_x[columns], xx=xx, xy=xy)

    def select_y(self, columns: np.ndarray) -> "Moments":
        """Return the moments for some columns of y. `columns` (k,) are their numbers in the new order, such as the
        columns of one text encoder or of a smaller vocabulary."""
        xy, yy = (np.ascontiguousarray(part) for part in (self.xy[:, columns], self.yy[columns][:, columns]))
        return replace(self, mean_y=self.mean_y[columns], xy=xy, yy=yy)

    def projected_x(self, basis: np.ndarray) -> "Moments":
        """Return the moments of the pairs (x Q, y), where Q (D, r) is `basis`."""
        return replace(self, mean_x=self.mean_x @ basis, xx=basis.T @ self.xx @ basis, xy=basis.T @ self.xy)

    def scaled_x(self, factors: np.ndarray) -> "Moments":
        """Return the moments with the columns of x multiplied by `factors` (D,)."""
        columns = factors.astype(self.xx.dtype)
        xx = self.xx * columns * columns[:, None]
        xy = self.xy * columns[:, None]
        return replace(self, mean_x=self.mean_x * factors, xx=xx, xy=xy)

    def scaled_y(self, factors: np.ndarray) -> "Moments":
        """Return the moments with the columns of y multiplied by `factors` (d,)."""
        columns = factors.astype(self.yy.dtype)
        yy = self.yy * columns * columns[:, None]
        xy = self.xy * columns
        return replace(self, mean_y=self.mean_y * factors, yy=yy, xy=xy)

    def expanded(self, x: "Expansion", y: "Expansion") -> "Moments":
        """Return the moments of the pairs after the image view is expanded by `x` and the text view by `y`. Expansions
        are linear, so the result is computed from these moments alone, without the vectors of the pairs."""
        yx = y.rows(x.rows(self.xy).T)  # The products of the expanded text view with the expanded image view, (d', D')
        return Moments(
            self.n,
            x.rows(self.mean_x[:, None].astype(np.float32))[:, 0].astype(float),
            y.rows(self.mean_y[:, None].astype(np.float32))[:, 0].astype(float),
            x.rows(x.rows(self.xx).T),
            np.ascontiguousarray(yx.T),
            y.rows(y.rows(self.yy).T),
        )

    def require_correlation(self) -> None:
        """Raise InputError if no model can be fitted to the moments.

        No model can be fitted if there are fewer than two pairs, if a view has values that are not finite, if a view is
        constant up to rounding, or if the views are uncorrelated up to rounding.
        """
        if self.n < 2:
            raise InputError(
                f"A linear model needs at least 2 training pairs of a photo and a caption, but there are {self.n:g}."
                " Add captioned photos to the split train."
            )
        for name, block, mean in (("image", self.xx, self.mean_x), ("text", self.yy, self.mean_y)):
            if not np.isfinite(block).all():
                raise InputError(
                    f"No model can be fitted: the moments of the {name} view are not finite, because at least one of"
                    " its vectors has NaN, infinity, or a value that is too large for single precision. Remove or"
                    " repair this vector. If only its values are too large, set normalise: [l2] for the encoder, which"
                    " scales all vectors to unit length."
                )
            if (block.diagonal() <= self.n * (np.finfo(np.float32).eps * mean) ** 2).all():
                raise InputError(
                    f"The {name} view has the same vector for all {self.n:g} training pairs. Use another {name}"
                    " encoder, or add photos and captions that differ."
                )
        # The variance of a nearly constant column is raised to ROUNDING times the greatest variance, so that the
        # rounding errors of this column do not look like a correlation.
        x, y = (np.maximum(one.diagonal().astype(float), ROUNDING * one.diagonal().max()) for one in (self.xx, self.yy))
        squares = np.einsum("ij,ij,j->i", self.xy, self.xy, 1 / y, dtype=float) @ (1 / x)
        if squares <= self.xy.size * ROUNDING**2:
            raise InputError(
                f"The image and text views are uncorrelated over all {self.n:g} training pairs, so there is no joint"
                " space. Check that each caption belongs to its photo, or use other encoders."
            )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays to store, name -> array. The matrices xx and yy are symmetric, so only their
        upper triangles are stored, in the form of `pack`."""
        return {**vars(self), "n": np.array(self.n), "xx": pack(self.xx), "yy": pack(self.yy)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Moments":
        """Restore moments from the arrays of `to_arrays`."""
        mean_x = np.array(arrays["mean_x"])
        mean_y = np.array(arrays["mean_y"])
        xx = unpack(arrays["xx"], len(mean_x))
        yy = unpack(arrays["yy"], len(mean_y))
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
        # The two products are centred about different means. The product of all pairs therefore also contains the outer
        # product of the difference of the means, with the weight root ** 2 (Chan, Golub and LeVeque 1983).
        root = np.sqrt(self.n * other.n / n)
        dx = (root * (self.mean_x - other.mean_x)).astype(self.xx.dtype)
        dy = (root * (self.mean_y - other.mean_y)).astype(self.xx.dtype)
        xx = _shifted_sum(self.xx, other.xx, sign, dx, dx, into[0])
        xy = _shifted_sum(self.xy, other.xy, sign, dx, dy, into[1])
        return Moments(n, mean_x, mean_y, xx, xy, _shifted_sum(self.yy, other.yy, sign, dy, dy, into[2]))


@dataclass(frozen=True)
class Expansion:
    """A linear map of a view x (D values) to [x, xA] if `keep` is true, and otherwise to xA. A is `matrix` (D, p)."""

    matrix: np.ndarray
    keep: bool

    def rows(self, block: np.ndarray) -> np.ndarray:
        """Compute E' block (D', k) for `block` (D, k), where E (D, D') is [I, A] if `keep` is true, and otherwise A."""
        new = self.matrix.T @ block
        return np.concatenate([block, new]) if self.keep else new

    def pull_back(self, directions: np.ndarray) -> np.ndarray:
        """Convert `directions` (D', c) of the expanded view to directions (D, c) of the view x, which give the same
        projections. The result is the product of E and `directions`, with E (D, D') as in `rows`."""
        size = len(self.matrix)
        return directions[:size] + self.matrix @ directions[size:] if self.keep else self.matrix @ directions


def _shifted_sum(
    mine: np.ndarray, theirs: np.ndarray, sign: int, left: np.ndarray, right: np.ndarray, into: np.ndarray | None
) -> np.ndarray:
    """Compute mine + sign * (theirs + left right') tile by tile, where left right' is an outer product.

    The result is written to the array `into`, which may be `mine`, or to a new array if `into` is None. This array is
    returned.
    """
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
    """Return the sum of `parts`, of which there must be at least one. Each part is added to the sum of the earlier
    parts, so an iterator that reads the parts from disk needs to hold only one part in memory."""
    return reduce(add, parts)


def mapped_sums(known: Moments, maps: "FeatureMaps") -> dict[str, np.ndarray]:
    """Return the sums of an accumulator of mapped views, name -> array of zeros.

    The views have the moments `known`, and `maps` adds the columns P and Q to x and y. `x`, `p` and `q` are the sums of
    the rows of x, P and Q. All other sums are products: `x_q`, for example, is the product x'Q. In these sums, x is
    centred about its mean in `known`, P and Q are centred about means that the accumulator chooses, and y is not
    centred. Of the symmetric products `pp` and `qq`, only the lower triangle is summed.
    """
    p, q = (feature_map.dim if feature_map else 0 for feature_map in (maps.image, maps.text))
    x, y = len(known.mean_x), len(known.mean_y)
    sums = {name: np.zeros(size) for name, size in {"x": x, "p": p, "q": q}.items()}
    products = {"x_p": (x, p), "x_q": (x, q), "y_p": (y, p), "y_q": (y, q), "pp": (p, p), "qq": (q, q), "pq": (p, q)}
    return sums | {name: np.zeros(shape, np.float32) for name, shape in products.items()}


def mapped_result(
    known: Moments, maps: "FeatureMaps", sums: dict[str, np.ndarray], shifts: tuple[np.ndarray, np.ndarray]
) -> Moments:
    """Return the moments of mapped views from the `sums` over all pairs, which `mapped_sums` describes. They are
    changed in place. `shifts` are the means (p,) and (q,) about which P and Q are centred in the sums."""
    n = known.n
    root = np.sqrt(n)
    x, p, q = (sums[name] / root for name in ("x", "p", "q"))
    xp, xq, pq = (
        _subtract_outer(sums[name], left, right) for name, left, right in (("x_p", x, p), ("x_q", x, q), ("pq", p, q))
    )
    yp, yq = (_subtract_outer(sums[f"y_{of}"], root * known.mean_y, mean) for of, mean in (("p", p), ("q", q)))
    pp, qq = (_subtract_outer(mirror(sums[name].T), mean, mean) for name, mean in (("pp", p), ("qq", q)))
    keep_x, keep_y = (feature_map is None or feature_map.keep for feature_map in (maps.image, maps.text))
    mean_p = shifts[0] + p / root
    mean_q = shifts[1] + q / root
    return Moments(
        n,
        np.concatenate([known.mean_x, mean_p]) if keep_x else mean_p,
        np.concatenate([known.mean_y, mean_q]) if keep_y else mean_q,
        np.block([[known.xx, xp], [xp.T, pp]]) if keep_x else pp,
        np.block([row[not keep_y :] for row in [[known.xy, xq], [yp.T, pq]][not keep_x :]]),
        np.block([[known.yy, yq], [yq.T, qq]]) if keep_y else qq,
    )


def _subtract_outer(total: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Subtract the outer product left right', in float32, from `total` (p, q), in place, and return `total`."""
    for start in range(0, len(left), TILE):
        rows = slice(start, start + TILE)
        total[rows] -= np.outer(left[rows].astype(np.float32), right.astype(np.float32))
    return total


def mirror(upper: np.ndarray) -> np.ndarray:
    """Copy the upper triangle of a square matrix to its lower triangle, in place, tile by tile. Return the matrix."""
    for i in range(0, len(upper), TILE):
        rows = slice(i, i + TILE)
        diagonal = upper[rows, rows]
        diagonal[:] = np.triu(diagonal) + np.triu(diagonal, 1).T
        for j in range(i + TILE, len(upper), TILE):
            columns = slice(j, j + TILE)
            upper[columns, rows] = upper[rows, columns].T
    return upper


def pack(symmetric: np.ndarray) -> np.ndarray:
    """Return the upper triangle of a symmetric (n, n) matrix with its diagonal, row by row, as (n (n + 1) / 2,)."""
    return np.concatenate([row[i:] for i, row in enumerate(symmetric)])


def unpack(packed: np.ndarray, n: int) -> np.ndarray:
    """Restore the symmetric (n, n) matrix from the result of `pack`, `packed` (n (n + 1) / 2,)."""
    full = np.empty((n, n), packed.dtype)
    start = 0
    for i in range(n):
        full[i, i:] = packed[start : start + n - i]
        start += n - i
    return mirror(full)

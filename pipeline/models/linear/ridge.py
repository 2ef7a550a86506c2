"""Ridge regression: the registered model `ridge`, from images to the principal directions of the text, and linear maps
between the features of two encoders."""

from dataclasses import dataclass

import numpy as np
import scipy  # Its parts are imported when they are used: embedding does not need them.

from pipeline.compute import runtime
from pipeline.errors import InputError
from pipeline.models.linear.cca import MomentsModel, top_eigenpairs
from pipeline.models.linear.moments import Moments, sum_moments
from pipeline.models.linear.projection import Directions


def add_ridge(block: np.ndarray, ridge: float) -> np.ndarray:
    """Add `ridge` times the mean of the diagonal to the diagonal of `block` (D, D), in place, and return it."""
    block[np.diag_indices_from(block)] += ridge * np.trace(block) / len(block)
    return block


class RidgeSolver:
    """U holds the top c principal directions of Y; W = (X'X + lambda I)^-1 X'Y U, in closed form.

    Of n pairs with covariances Cxx and Cxy, lambda is n times the relative ridge times the mean of Cxx's diagonal. The
    values are the variances of Y along U. The largest entry of each column of U is positive.
    """

    def __init__(self, moments: Moments) -> None:
        """Raise InputError if there are fewer than two pairs, a view is constant, or the views are uncorrelated."""
        moments.require_correlation()
        self.moments = moments
        self._principal: tuple[np.ndarray, np.ndarray] | None = None

    def solve(self, image_ridge: float, text_ridge: float, dimensions: int) -> Directions:
        """Compute the top `dimensions` directions; `text_ridge` is unused. Raises InputError if X'X is singular."""
        u, variances = self._principal_directions(dimensions)
        cxx = add_ridge(self.moments.xx / self.moments.n, image_ridge)
        try:
            factor = scipy.linalg.cho_factor(cxx, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            raise InputError(
                f"the covariance of the image view is singular at ridge {image_ridge:g}; raise fit.image_ridge"
            ) from None
        return Directions(scipy.linalg.cho_solve(factor, self.moments.xy @ u / self.moments.n), u, variances)

    def _principal_directions(self, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
        if self._principal is None or len(self._principal[1]) < dimensions:
            variances, u = top_eigenpairs(self.moments.yy / self.moments.n, min(dimensions, len(self.moments.yy)))
            signs = np.sign(u[np.abs(u).argmax(axis=0), np.arange(u.shape[1])])
            self._principal = u * signs, np.maximum(variances, 0)
        u, variances = self._principal
        return u[:, :dimensions], variances[:dimensions]


class RidgeRegression(MomentsModel):
    """Ridge regression with Euclidean retrieval (Gong et al. 2014, section 3).

    min over W of |YU - XW|^2 + lambda |W|^2 with U the principal directions of Y; retrieval by |xW - yU|. Paper to
    code: W `w`, U `u`, lambda from fit.image_ridge, c the number of columns.
    """

    solver = RidgeSolver
    uses_text_ridge = False


# --- maps between encoders

FOLDS = 5
"""Parts of the photos, each of which is predicted from the others to choose the ridge."""
RIDGES = (1e-2, 1e-1, 1.0, 10.0, 100.0)
"""Ridges to try, relative to the mean variance of a feature."""
MIN_PHOTOS = 50
"""Minimum number of photos for a map."""


@dataclass(frozen=True)
class EncoderMap:
    """A linear map from the features of one encoder to the features of another: y = mean_y + (x - mean_x) W.

    W is `weight` (D, d) = (X'X + lambda I)^-1 X'Y, where lambda is the relative `ridge` times n times the mean variance
    of x. Features without negative values, such as rectified features, are mapped by their square roots, as models take
    them; `roots` says of x and of y whether they are square roots. `loss` is the share of the variance of y that stays
    unexplained in each of FOLDS parts by a map of the other parts; the ridge has the smallest loss.
    """

    weight: np.ndarray
    mean_x: np.ndarray
    mean_y: np.ndarray
    roots: tuple[bool, bool]
    ridge: float
    loss: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Map features x (n, D) float32 to (n, d) float32."""
        y = (_take_roots(x, self.roots[0]) - self.mean_x) @ self.weight + self.mean_y
        return np.maximum(y, 0) ** 2 if self.roots[1] else y

    def unexplained(self, x: np.ndarray, y: np.ndarray) -> float:
        """Compute the loss on the features x (n, D) and y (n, d) of other photos."""
        mapped = _take_roots(self(x), self.roots[1])
        expected = _take_roots(y, self.roots[1])
        return float(((expected - mapped) ** 2).sum() / ((expected - expected.mean(axis=0)) ** 2).sum())


def fit_encoder_map(x: np.ndarray, y: np.ndarray, seed: int = 0) -> EncoderMap:
    """Fit the map of x (n, D) to y (n, d), both float32, of the same n photos.

    Raises InputError for fewer than MIN_PHOTOS photos, and for features that are constant or uncorrelated.
    """
    if len(x) < MIN_PHOTOS:
        raise InputError(f"a map between encoders needs {MIN_PHOTOS} photos or more that both have seen, not {len(x)}")
    roots = bool(x.min() >= 0), bool(y.min() >= 0)
    x, y = _take_roots(x, roots[0]), _take_roots(y, roots[1])
    folds = np.random.default_rng(seed).permutation(len(x)) % FOLDS
    parts = [_sum_pairs(x[folds == fold], y[folds == fold]) for fold in range(FOLDS)]
    total = sum_moments(parts)
    squared_errors = np.zeros(len(RIDGES))
    variance = 0.0
    for fold, part in enumerate(parts):
        others = total - part
        held_out_x = x[folds == fold] - others.mean_x.astype(np.float32)
        held_out_y = y[folds == fold]
        variance += float(((held_out_y - others.mean_y) ** 2).sum())
        for number, ridge in enumerate(RIDGES):
            mapped = held_out_x @ _solve_ridge(others, ridge) + others.mean_y
            if roots[1]:
                mapped = np.maximum(mapped, 0)
            squared_errors[number] += float(((held_out_y - mapped) ** 2).sum())
    best = int(squared_errors.argmin())
    return EncoderMap(
        _solve_ridge(total, RIDGES[best]).astype(np.float32),
        total.mean_x.astype(np.float32),
        total.mean_y.astype(np.float32),
        roots,
        RIDGES[best],
        float(squared_errors[best] / variance),
    )


def _take_roots(features: np.ndarray, are_roots: bool) -> np.ndarray:
    return np.sqrt(np.maximum(features, 0)) if are_roots else features


def _sum_pairs(x: np.ndarray, y: np.ndarray) -> Moments:
    from pipeline.models.linear.accumulation import MomentsAccumulator  # embedding does not need it

    accumulator = MomentsAccumulator(x.shape[1], y.shape[1], runtime.threads())
    accumulator.add(x, y, np.arange(len(x)))
    return accumulator.result()


def _solve_ridge(moments: Moments, ridge: float) -> np.ndarray:
    """Solve (X'X + lambda I) W = X'Y for W (D, d). Raises InputError if a view is constant, or they are unrelated."""
    moments.require_correlation()
    regularised = add_ridge(moments.xx.astype(np.float64), ridge)
    return scipy.linalg.solve(regularised, moments.xy, assume_a="pos", overwrite_a=True, check_finite=False)

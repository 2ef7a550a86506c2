"""A linear map from the features of one encoder into those of another, from photographs that both have seen.

Features without negative values, as rectified ones are, are mapped by their square roots, which is how models take
them, too.
"""

from dataclasses import dataclass

import numpy as np
import scipy

from pipeline.compute import runtime
from pipeline.errors import InputError
from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.moments import Moments, sum_moments

FOLDS = 5
RIDGES = (1e-2, 1e-1, 1.0, 10.0, 100.0)
"""Relative to the mean variance of a feature."""
FEWEST = 50
"""Photographs that a map is fitted to at least."""


@dataclass(frozen=True)
class EncoderMap:
    """y = mean_y + (x - mean_x) W, by `weight` (D, d); `roots` says of x and of y whether they are square roots.

    Ridge regression, W = (X'X + lambda I)^-1 X'Y, lambda being the relative `ridge` times n times the mean variance of
    x. `loss` is the share of the variance of y that the maps of all but one of FOLDS parts leave unexplained in that
    part; the ridge is the one with the smallest.
    """

    weight: np.ndarray
    mean_x: np.ndarray
    mean_y: np.ndarray
    roots: tuple[bool, bool]
    ridge: float
    loss: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """(n, d) float32 for features x (n, D) float32."""
        y = (_rooted(x, self.roots[0]) - self.mean_x) @ self.weight + self.mean_y
        return np.maximum(y, 0) ** 2 if self.roots[1] else y

    def unexplained(self, x: np.ndarray, y: np.ndarray) -> float:
        """The loss of the features x (n, D) and y (n, d) of other photographs."""
        mapped, y = (_rooted(features, self.roots[1]) for features in (self(x), y))
        return float(((y - mapped) ** 2).sum() / ((y - y.mean(axis=0)) ** 2).sum())


def fit_encoder_map(x: np.ndarray, y: np.ndarray, seed: int = 0) -> EncoderMap:
    """Fit the map of x (n, D) to y (n, d), both float32, of the same n photos. Raises InputError for fewer than
    FEWEST photos and for constant features."""
    if len(x) < FEWEST:
        raise InputError(f"a map between encoders needs {FEWEST} photos or more that both have seen, not {len(x)}")
    roots = bool(x.min() >= 0), bool(y.min() >= 0)
    x, y = _rooted(x, roots[0]), _rooted(y, roots[1])
    folds = np.random.default_rng(seed).permutation(len(x)) % FOLDS
    parts = [_moments(x[folds == fold], y[folds == fold]) for fold in range(FOLDS)]
    whole = sum_moments(parts)
    squares, variance = np.zeros(len(RIDGES)), 0.0
    for fold, part in enumerate(parts):
        rest, here = whole - part, folds == fold
        variance += float(((y[here] - rest.mean_y) ** 2).sum())
        centred = x[here] - rest.mean_x.astype(np.float32)
        for number, ridge in enumerate(RIDGES):
            mapped = centred @ _weight(rest, ridge) + rest.mean_y
            squares[number] += float(((y[here] - (np.maximum(mapped, 0) if roots[1] else mapped)) ** 2).sum())
    best = int(squares.argmin())
    weight = _weight(whole, RIDGES[best])
    arrays = (array.astype(np.float32) for array in (weight, whole.mean_x, whole.mean_y))
    return EncoderMap(*arrays, roots, RIDGES[best], float(squares[best] / variance))


def _rooted(features: np.ndarray, root: bool) -> np.ndarray:
    return np.sqrt(np.maximum(features, 0)) if root else features


def _moments(x: np.ndarray, y: np.ndarray) -> Moments:
    accumulator = MomentsAccumulator(x.shape[1], y.shape[1], runtime.threads())
    accumulator.add(x, y, np.arange(len(x)))
    return accumulator.result()


def _weight(moments: Moments, ridge: float) -> np.ndarray:
    """Solve (X'X + lambda I) W = X'Y for W (D, d). Raises InputError if a view is constant, or they are unrelated."""
    moments.require_correlation()
    regularised = moments.xx.astype(np.float64)
    regularised[np.diag_indices_from(regularised)] += ridge * np.trace(regularised) / len(regularised)
    return scipy.linalg.solve(regularised, moments.xy, assume_a="pos", overwrite_a=True, check_finite=False)

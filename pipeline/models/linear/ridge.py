"""Least-squares maps: the registered models `ridge`, `ridge-cosine` and `procrustes`, and maps between two encoders.

`ridge` and `ridge-cosine` map images to the principal directions of the text. `procrustes` is an orthogonal map from
the image view to the text view. A map between two encoders turns the features of one image encoder into features of
another image encoder, so that photos need not be encoded again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy  # SciPy loads its parts on first use, so embedding does not load them.

from pipeline.compute import runtime
from pipeline.errors import InputError
from pipeline.models.linear.cca import MomentsModel, top_eigenpairs
from pipeline.models.linear.moments import Moments, sum_moments
from pipeline.models.linear.projection import Directions, UnitProjections, column_signs

if TYPE_CHECKING:
    from pipeline.models.linear.training import FitTask
    from pipeline.models.linear.tuning import Tuned


def add_ridge(block: np.ndarray, ridge: float) -> np.ndarray:
    """Add a ridge to the diagonal of `block` (D, D) in place, and return `block`. The ridge is the relative `ridge`
    times the mean of the diagonal."""
    block[np.diag_indices_from(block)] += ridge * np.trace(block) / len(block)
    return block


class RidgeSolver:
    """Solver of ridge regression on one set of moments: W = (X'X + lambda I)^-1 X'Y U (Gong et al. 2014, section 3).

    U (d, c) has the c principal directions of Y with the greatest variance. lambda is n times the relative ridge times
    the mean of the diagonal of the covariance Cxx, for n pairs. The values of the directions are the variances of Y
    along U. The entry of each column of U with the greatest absolute value is positive.
    """

    def __init__(self, moments: Moments) -> None:
        """Store the moments. Raises InputError if the moments have fewer than two pairs or values that are not finite,
        if a view is constant, or if the views are uncorrelated."""
        moments.require_correlation()
        self.moments = moments
        self._principal: tuple[np.ndarray, np.ndarray] | None = None

    def solve(self, image_ridge: float, text_ridge: float, dimensions: int) -> Directions:
        """Compute the `dimensions` directions with the greatest variance of Y, or all d directions if d is smaller.
        `image_ridge` is relative to the mean of the diagonal of Cxx, and `text_ridge` is not used. Raises InputError if
        Cxx is singular although the ridge is added."""
        u, variances = self._principal_directions(dimensions)
        cxx = add_ridge(self.moments.xx / self.moments.n, image_ridge)
        try:
            factor = scipy.linalg.cho_factor(cxx, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            raise InputError(
                f"The covariance of the image view is singular at the ridge {image_ridge:g}. Raise fit.image_ridge."
            ) from None
        return Directions(scipy.linalg.cho_solve(factor, self.moments.xy @ u / self.moments.n), u, variances)

    def _principal_directions(self, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
        if self._principal is None or len(self._principal[1]) < dimensions:
            variances, u = top_eigenpairs(self.moments.yy / self.moments.n, min(dimensions, len(self.moments.yy)))
            signs = column_signs(u)
            self._principal = u * signs, np.maximum(variances, 0)
        u, variances = self._principal
        return u[:, :dimensions], variances[:dimensions]


class RidgeRegression(MomentsModel):
    """Ridge regression, compared by the Euclidean distance |xW - yU| (Gong et al. 2014, section 3).

    W minimises |YU - XW|^2 + lambda |W|^2, where X (n, D) and Y (n, d) are the centred views, and U has the c principal
    directions of Y with the greatest variance. In the code, W is `directions.w` (D, c), U is `directions.u` (d, c), and
    lambda follows from `fit.image_ridge`, as RidgeSolver describes.
    """

    solver = RidgeSolver
    uses_text_ridge = False


class CosineRidge(UnitProjections, RidgeRegression):
    """The registered model `ridge-cosine`: ridge regression from images to text vectors, compared by the cosine of xW
    and yU, where x is a centred image and y is a centred text vector. W and U are the same as in RidgeRegression,
    which compares by distance instead."""


class ProcrustesSolver:
    """Solver of the orthogonal Procrustes problem on one set of moments (Schönemann 1966, eq. 1.8 and 1.9).

    The singular value decomposition X'Y = W S U' gives the orthogonal map T = W U' that minimises |XT - Y|. The solver
    returns W and U, so that an image xW and a sentence yU are compared in the coordinates of U. The values are the
    covariances S / n. The entry of each column of W with the greatest absolute value is positive.
    """

    def __init__(self, moments: Moments) -> None:
        """Compute the singular value decomposition of X'Y. Raises InputError if the moments have fewer than two pairs
        or values that are not finite, if a view is constant, or if the views are uncorrelated."""
        moments.require_correlation()
        w, values, u = scipy.linalg.svd(moments.xy / moments.n, full_matrices=False, check_finite=False)
        signs = column_signs(w)
        self._directions = Directions(w * signs, u.T * signs, values)

    def solve(self, image_ridge: float, text_ridge: float, dimensions: int) -> Directions:
        """Return the `dimensions` directions with the greatest covariance, or all directions if there are fewer. The
        ridges are not used."""
        return self._directions.first(dimensions)


class Procrustes(UnitProjections, MomentsModel):
    """The orthogonal map of images to sentences, compared by cosine similarity (Schönemann 1966).

    X'Y = W S U' is the singular value decomposition of the centred views. In the code, W is `directions.w` (D, c) and U
    is `directions.u` (d, c). The number c is chosen on dev. The score is the cosine of xW and yU. If c = d, which
    requires d <= D, this is the cosine of the mapped image xWU' and the sentence y.
    """

    solver = ProcrustesSolver
    uses_text_ridge = False

    @classmethod
    def fit(cls, task: "FitTask") -> "Tuned":
        without_ridge = task.grid.model_copy(update={"image_ridge": (0.0,)})
        return super().fit(replace(task, grid=without_ridge))


# --- maps between encoders

FOLDS = 5
"""Number of folds of the photos of a map between encoders. To choose the ridge, each fold is predicted by a map that is
fitted to the other folds."""
RIDGES = (1e-2, 1e-1, 1.0, 10.0, 100.0)
"""Ridges that `fit_encoder_map` tries by default, relative to the mean variance of a feature of x."""
MIN_PHOTOS = 50
"""Minimum number of photos from which a map between encoders is fitted. For fewer photos, `fit_encoder_map` raises
InputError."""


@dataclass(frozen=True)
class EncoderMap:
    """A linear map from the features x of one encoder to the features y of another: y = mean_y + (x - mean_x) W.

    W is `weight` (D, d) = (X'X + lambda I)^-1 X'Y for the n photos of the fit, where lambda is the relative `ridge`
    times n times the mean variance of x. `roots` has a truth value for x and a truth value for y. If the value for x or
    for y is true, the square roots of the features of this encoder take the place of x or y in these equations and in
    `loss`, because models read square roots too. `loss` is the share of the variance of y that is not explained when
    each fold is predicted from the other folds, and is 0 for a perfect map. `ridge` is the tried ridge with the
    smallest loss.
    """

    weight: np.ndarray
    mean_x: np.ndarray
    mean_y: np.ndarray
    roots: tuple[bool, bool]
    ridge: float
    loss: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Map the features x (n, D) float32 of n photos by the first encoder to features of the second encoder, (n, d)
        float32. This method takes and undoes the square roots of `roots`, so x and the result are plain features."""
        y = (_take_roots(x, self.roots[0]) - self.mean_x) @ self.weight + self.mean_y
        return np.maximum(y, 0) ** 2 if self.roots[1] else y


def fit_encoder_map(
    x: np.ndarray,
    y: np.ndarray,
    seed: int = 0,
    *,
    use_roots: bool = True,
    captioned: tuple[np.ndarray, np.ndarray] | None = None,
    ridges: Sequence[float] = RIDGES,
) -> EncoderMap:
    """Fit the map from x (n, D) to y (n, d), the float32 features of the same n photos by two encoders.

    The photos are divided into folds, which `seed` decides, and the ridge of `ridges` with the smallest loss over the
    folds is chosen. The map is then fitted to all photos. The square roots of the features of an encoder are used if
    none of its features is negative, unless `use_roots` is false.

    `captioned` can be given if y and caption vectors are in one space. It is a pair: the features (k, D) of k more
    photos by the encoder of x, and for each of these photos the mean (k, d) of its caption vectors. The map is fitted
    to these k pairs as well, but the choice of the ridge does not depend on them.

    Raises InputError for fewer than MIN_PHOTOS photos, and for features that are constant, uncorrelated or not finite.
    """
    if len(x) < MIN_PHOTOS:
        raise InputError(
            f"A map between encoders needs at least {MIN_PHOTOS} photos with features of both encoders, but there are"
            f" {len(x)}. Extract the features of more photos with both encoders."
        )
    roots = use_roots and bool(x.min() >= 0), use_roots and bool(y.min() >= 0)
    x = _take_roots(x, roots[0])
    y = _take_roots(y, roots[1])
    folds = np.random.default_rng(seed).permutation(len(x)) % FOLDS
    fold_moments = [_sum_pairs(x[folds == fold], y[folds == fold]) for fold in range(FOLDS)]
    total = sum_moments(fold_moments)
    squared_errors = np.zeros(len(ridges))
    variance = 0.0
    for fold, own in enumerate(fold_moments):
        others = total - own
        held_out_x = x[folds == fold] - others.mean_x.astype(np.float32)
        held_out_y = y[folds == fold]
        variance += float(((held_out_y - others.mean_y) ** 2).sum())
        for number, ridge in enumerate(ridges):
            mapped = held_out_x @ _solve_ridge(others, ridge) + others.mean_y
            if roots[1]:
                mapped = np.maximum(mapped, 0)
            squared_errors[number] += float(((held_out_y - mapped) ** 2).sum())
    best = int(squared_errors.argmin())
    means = total.mean_x.astype(np.float32), total.mean_y.astype(np.float32)
    ridge = ridges[best]
    # The features and the caption vectors of captioned photos are centred about their own means, because the mean of
    # captions differs from the mean of images.
    if captioned is not None:
        centred = (side - side.mean(axis=0) for side in (_take_roots(captioned[0], roots[0]), captioned[1]))
        total = _sum_pairs(x - means[0], y - means[1]) + _sum_pairs(*centred)
        # The ridge is relative to X'X, which grows with the number of pairs. Here, lambda stays about the same as
        # without captioned photos.
        ridge *= len(x) / total.n
    weight = _solve_ridge(total, ridge).astype(np.float32)
    return EncoderMap(weight, *means, roots, ridges[best], float(squared_errors[best] / variance))


def _take_roots(features: np.ndarray, are_roots: bool) -> np.ndarray:
    return np.sqrt(np.maximum(features, 0)) if are_roots else features


def _sum_pairs(x: np.ndarray, y: np.ndarray) -> Moments:
    from pipeline.models.linear.accumulation import MomentsAccumulator  # Embedding does not need this import.

    accumulator = MomentsAccumulator(x.shape[1], y.shape[1], runtime.threads())
    accumulator.add(x, y, np.arange(len(x)))
    return accumulator.result()


def _solve_ridge(moments: Moments, ridge: float) -> np.ndarray:
    """Solve (X'X + lambda I) W = X'Y for W (D, d), where lambda is `ridge` times the mean of the diagonal of X'X.
    `moments` are not changed.

    Raises InputError if the views are constant, uncorrelated or not finite.
    """
    moments.require_correlation()
    regularised = add_ridge(moments.xx.astype(np.float64), ridge)
    return scipy.linalg.solve(regularised, moments.xy, assume_a="pos", overwrite_a=True, check_finite=False)

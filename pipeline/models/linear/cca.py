"""Canonical correlation analysis on moments: the registered models `cca` and `ncca` (Gong et al. 2014, section 3)."""

from typing import TYPE_CHECKING

import numpy as np
import scipy  # whose parts it imports when they are used: embedding does without

from pipeline.errors import InputError
from pipeline.models.linear.moments import Moments
from pipeline.models.linear.projection import Directions, LinearModel, unit_rows

if TYPE_CHECKING:
    from pipeline.models.linear.training import FitTask
    from pipeline.models.linear.tuning import Tuned


class MomentsModel(LinearModel):
    """A linear model that is fitted to moments."""

    @classmethod
    def fit(cls, task: "FitTask") -> "Tuned":
        """Fit the best model on dev, by `task.training`."""
        from pipeline.models.linear.training import fit_on_moments  # Answering queries does not need it.

        return fit_on_moments(cls, task)


RANK_TOLERANCE = 1e-3
"""Correlations below this share of the largest correlation are noise of single precision and are cut off."""
RANGE_TOLERANCE = 1e-6
"""Share of the largest variance below which the rest of a column is rounding."""
RANGE_SHARE = 0.75
"""Ratio of rank to dimensions below which solving in the range saves more time than the projection costs."""


class CCASolver:
    """Solves CCA on one set of moments and reuses factors from one pair of ridges to the next.

    The directions satisfy W' (Cxx + rx I) W = I, U' (Cyy + ry I) U = I and W' Cxy U = diag(values); the values are the
    canonical correlations: the eigenvalues of the problem's two-block form, the lambda of eq. 2. The largest entry of
    each column of W is positive.

    With Cxx = Lx Lx' and Cyy = Ly Ly' (ridges added), the canonical correlations are the singular values of
    T = Lx^-1 Cxy Ly^-T: two Cholesky factors, two triangular solves and the top of an eigenproblem of the smaller side.
    If there are far fewer images than dimensions in their view, the problem is solved in the space that they span.
    """

    def __init__(self, moments: Moments) -> None:
        """Raise InputError if there are fewer than two pairs, a view is constant, or the views are uncorrelated."""
        moments.require_correlation()
        self._scales = {"image": _mean_variance(moments.xx, moments.n), "text": _mean_variance(moments.yy, moments.n)}
        self._basis = find_range(moments.xx)
        if self._basis is not None:
            moments = moments.projected_x(self._basis)
        self.moments = moments
        self._image_factors: dict[float, np.ndarray] = {}
        self._text: tuple[float, np.ndarray, np.ndarray] | None = None

    def solve(self, image_ridge: float, text_ridge: float, dimensions: int) -> Directions:
        """Compute the top `dimensions` directions, or fewer if the data have less rank.

        A ridge is relative to the mean of the diagonal of its view's covariance. Raises InputError if a covariance is
        singular at this ridge. A call with the `text_ridge` of the last call is the cheapest.
        """
        if image_ridge not in self._image_factors:
            self._image_factors[image_ridge] = self._factor("image", self.moments.xx, image_ridge)
        lx, (ly, white) = self._image_factors[image_ridge], self._whiten_text(text_ridge)
        t = scipy.linalg.solve_triangular(lx, white.T, lower=True, check_finite=False)
        left, correlations, right = _top_singular(t, dimensions)
        w = scipy.linalg.solve_triangular(lx, left, lower=True, trans="T", check_finite=False)
        u = scipy.linalg.solve_triangular(ly, right, lower=True, trans="T", check_finite=False)
        if self._basis is not None:
            w = self._basis @ w
        signs = np.sign(w[np.abs(w).argmax(axis=0), np.arange(w.shape[1])])
        return Directions(w * signs, u * signs, correlations)

    def _whiten_text(self, ridge: float) -> tuple[np.ndarray, np.ndarray]:
        """Compute Ly (d, d) and Ly^-1 Cyx (d, D), which are kept only for the last ridge, because they are large."""
        if self._text is None or self._text[0] != ridge:
            self._text = None
            factor = self._factor("text", self.moments.yy, ridge)
            white = (self.moments.xy / self.moments.n).T
            white = scipy.linalg.solve_triangular(factor, white, lower=True, overwrite_b=True, check_finite=False)
            self._text = (ridge, factor, white)
        return self._text[1:]

    def _factor(self, view: str, block: np.ndarray, ridge: float) -> np.ndarray:
        """Compute the lower Cholesky factor of a view's covariance with its ridge added."""
        covariance = block / self.moments.n
        covariance[np.diag_indices_from(covariance)] += ridge * self._scales[view]
        try:
            return scipy.linalg.cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            raise InputError(
                f"the covariance of the {view} view is singular at ridge {ridge:g}; raise fit.{view}_ridge"
            ) from None


def _mean_variance(block: np.ndarray, n: float) -> float:
    return float(np.trace(block, dtype=np.float64)) / n / len(block)


def find_range(block: np.ndarray) -> np.ndarray | None:
    """Compute an orthonormal basis (D, r) of the range of the symmetric `block` (D, D); None if r is not far below D.

    It comes from a pivoted Cholesky factorisation that stops when the rest of every column is less than RANGE_TOLERANCE
    of the largest variance.
    """
    (pstrf,) = scipy.linalg.lapack.get_lapack_funcs(("pstrf",), (block,))
    factor, pivots, rank, _ = pstrf(block, tol=RANGE_TOLERANCE * block.diagonal().max(), lower=1)
    if not 0 < rank < RANGE_SHARE * len(block):
        return None
    columns = np.empty((len(block), rank), block.dtype)
    columns[pivots - 1] = np.tril(factor)[:, :rank]
    return scipy.linalg.qr(columns, mode="economic", overwrite_a=True, check_finite=False)[0]


def top_eigenpairs(symmetric: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute the `count` greatest eigenvalues (c,), descending, of a symmetric matrix (n, n), and vectors (n, c)."""
    subset = [len(symmetric) - count, len(symmetric) - 1]
    values, vectors = scipy.linalg.eigh(symmetric, subset_by_index=subset, check_finite=False)
    if len(values) < count:  # LAPACK's default method loses eigenvalues if nearly all are equal
        values, vectors = (one[..., -count:] for one in scipy.linalg.eigh(symmetric, driver="evd", check_finite=False))
    return values[::-1], vectors[:, ::-1]


def _top_singular(t: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the `count` largest singular triplets of t: left (D, c), values (c,), right (d, c)."""
    wide = t.shape[0] <= t.shape[1]
    gram = t @ t.T if wide else t.T @ t
    size = len(gram)
    count = min(count, size)
    vectors = top_eigenpairs(gram, count)[1]
    # Lengths of t v are far more exact than roots of the eigenvalues: their error is the square of that of v.
    other = t.T @ vectors if wide else t @ vectors
    singular = np.sqrt(np.einsum("ij,ij->j", other, other))
    if not singular[0] <= 1 + 1e-3:
        raise InputError("the views are numerically degenerate at this ridge; raise fit.image_ridge and fit.text_ridge")
    kept = singular > RANK_TOLERANCE * singular[0]
    vectors, other, singular = vectors[:, kept], other[:, kept] / singular[kept], np.minimum(singular[kept], 1)
    return (vectors, singular, other) if wide else (other, singular, vectors)


class CCA(MomentsModel):
    """Canonical correlation analysis with Euclidean retrieval.

    max trace(W' X'Y U) subject to W' X'X W = I and U' Y'Y U = I (eq. 1), on centred views with a ridge added to each
    covariance. Paper to code: W `w`, U `u`, lambda `values`, c the number of columns.
    """

    solver = CCASolver


class NormalizedCCA(MomentsModel):
    """Normalized CCA: directions scaled by a power of their eigenvalues, cosine similarity.

    score(x, y) = cos(x W diag(lambda^t), y U diag(lambda^t)) (eq. 2); t is `eigenvalue_power`.
    """

    solver = CCASolver
    metric = "inner_product"
    uses_eigenvalue_power = True

    @staticmethod
    def finish(projected: np.ndarray, values: np.ndarray, power: float) -> np.ndarray:
        """Scale by values ** power, then to unit length."""
        return unit_rows(projected * values**power)

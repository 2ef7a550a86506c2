"""Canonical correlation analysis on moments: the registered models `cca`, `ncca` and `csa`.

`cca` and `ncca` are as in Gong et al. 2014, section 3. `csa` is canonical similarity analysis.
"""

from typing import TYPE_CHECKING

import numpy as np
import scipy  # SciPy loads its parts on first use, so embedding does not load them.

from pipeline.errors import InputError
from pipeline.models.joint_model import Features, RegionSource, Sentences
from pipeline.models.linear.moments import Moments
from pipeline.models.linear.projection import Directions, LinearModel, column_signs, unit_rows

if TYPE_CHECKING:
    from pipeline.models.linear.training import FitTask
    from pipeline.models.linear.tuning import Tuned


class MomentsModel(LinearModel):
    """The base class of linear models that a solver fits to moments alone. A subclass sets `solver`."""

    @classmethod
    def fit(cls, task: "FitTask") -> "Tuned":
        """Fit models by the training method `task.training` with all settings to try. Return the model that is best on
        dev, and all trials. Raises UsageError and InputError as `fit_on_moments` and the solver do."""
        from pipeline.models.linear.training import fit_on_moments  # Answering queries does not need this import.

        return fit_on_moments(cls, task)


RANK_TOLERANCE = 1e-3
"""Share of the largest canonical correlation. Directions whose correlation is at most this share are noise of single
precision and are left out."""
RANGE_TOLERANCE = 1e-6
"""Share of the largest variance of a column. `find_range` treats an unexplained variance below this share as a rounding
error."""
MAX_FACTOR_BYTES = 1 << 28
"""Largest total size in bytes of the Cholesky factors of image covariances that a CCASolver keeps. The last factor is
kept even if it alone is larger."""
MAX_RANGE_RATIO = 0.75
"""Ratio of the rank r of the image covariance (D, D) to D. If r / D is less than this ratio, a problem is solved in r
dimensions. Otherwise it is solved in D dimensions, because the projection to r dimensions would take more time than it
saves."""


class CCASolver:
    """Solver of regularised CCA on one set of moments, for any number of ridges (Gong et al. 2014, eq. 1).

    Cxx, Cyy and Cxy are the covariances. The ridge rx is `image_ridge` times the mean of the diagonal of Cxx, and ry is
    `text_ridge` times the mean of the diagonal of Cyy. The directions W (D, c) and U (d, c) satisfy
    W' (Cxx + rx I) W = I, U' (Cyy + ry I) U = I and W' Cxy U = diag(values). The values are the canonical correlations,
    which are the lambda of eq. 2. The entry of each column of W with the greatest absolute value is positive.

    With Cxx + rx I = Lx Lx' and Cyy + ry I = Ly Ly', the canonical correlations are the singular values of
    T = Lx^-1 Cxy Ly^-T. Their computation takes two Cholesky factors, two triangular solves and an eigenproblem of the
    smaller side. The factors are kept for later calls with an equal ridge: several factors of images, and the last
    factor of the text. If the rank of Cxx is less than MAX_RANGE_RATIO times D, the problem is solved in the space that
    the images span.
    """

    def __init__(self, moments: Moments) -> None:
        """Prepare a solver of the problem with these `moments`. Raises InputError if the moments have fewer than two
        pairs or values that are not finite, if a view is constant, or if the views are uncorrelated."""
        moments.require_correlation()
        self._scales = {"image": _mean_variance(moments.xx, moments.n), "text": _mean_variance(moments.yy, moments.n)}
        self._basis = find_range(moments.xx)
        if self._basis is not None:
            moments = moments.projected_x(self._basis)
        self.moments = moments
        self._image_factors: dict[float, np.ndarray] = {}
        self._text: tuple[float, np.ndarray, np.ndarray] | None = None

    def solve(self, image_ridge: float, text_ridge: float, dimensions: int) -> Directions:
        """Compute the `dimensions` directions with the greatest canonical correlations, or fewer if the data have a
        lower rank or the other correlations are at most RANK_TOLERANCE times the greatest.

        A ridge is relative to the mean of the diagonal of its view's covariance. Raises InputError if a covariance is
        singular although its ridge is added, or if the ridges are so small that rounding makes a canonical correlation
        clearly greater than 1. A call is cheapest if it has the same `text_ridge` as the call before.
        """
        factors = self._image_factors
        if image_ridge not in factors:
            while factors and (len(factors) + 1) * self.moments.xx.nbytes > MAX_FACTOR_BYTES:
                del factors[next(iter(factors))]
            factors[image_ridge] = self._factor("image", self.moments.xx, image_ridge)
        lx, (ly, white) = factors[image_ridge], self._whiten_text(text_ridge)
        t = scipy.linalg.solve_triangular(lx, white.T, lower=True, check_finite=False)
        left, correlations, right = _top_singular(t, dimensions)
        w = scipy.linalg.solve_triangular(lx, left, lower=True, trans="T", check_finite=False)
        u = scipy.linalg.solve_triangular(ly, right, lower=True, trans="T", check_finite=False)
        if self._basis is not None:
            w = self._basis @ w
        signs = column_signs(w)
        return Directions(w * signs, u * signs, correlations)

    def _whiten_text(self, ridge: float) -> tuple[np.ndarray, np.ndarray]:
        """Compute Ly (d, d) and Ly^-1 Cyx (d, D) for the relative text ridge `ridge`. If the images are projected to r
        dimensions, Cyx has r columns.

        Only the results for the last ridge are kept for the next call, because they are large. Raises InputError if the
        covariance of the text is singular at this ridge.
        """
        if self._text is None or self._text[0] != ridge:
            self._text = None
            factor = self._factor("text", self.moments.yy, ridge)
            white = (self.moments.xy / self.moments.n).T
            white = scipy.linalg.solve_triangular(factor, white, lower=True, overwrite_b=True, check_finite=False)
            self._text = (ridge, factor, white)
        return self._text[1:]

    def _factor(self, view: str, block: np.ndarray, ridge: float) -> np.ndarray:
        """Compute the lower Cholesky factor of the covariance of `view` (`image` or `text`) plus the ridge.

        `block` is X'X or Y'Y, and `ridge` is relative to the mean variance of the view. Raises InputError if the
        covariance is singular although the ridge is added.
        """
        covariance = block / self.moments.n
        covariance[np.diag_indices_from(covariance)] += ridge * self._scales[view]
        try:
            # LAPACK works in place only if the columns of its matrix are contiguous in memory, as in the transpose.
            # The transpose of a covariance has the same values.
            return scipy.linalg.cholesky(covariance.T, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            raise InputError(
                f"The covariance of the {view} view is singular at the ridge {ridge:g}. Raise fit.{view}_ridge."
            ) from None


def _mean_variance(block: np.ndarray, n: float) -> float:
    return float(np.trace(block, dtype=np.float64)) / n / len(block)


def find_range(block: np.ndarray) -> np.ndarray | None:
    """Compute an orthonormal basis (D, r) of the range of the symmetric `block` (D, D).

    Returns None, so that the caller keeps all D dimensions, if the rank r is 0 or at least MAX_RANGE_RATIO times D.

    A pivoted Cholesky factorisation gives the basis. The factorisation stops when the unexplained variance of every
    column is less than RANGE_TOLERANCE of the largest variance.
    """
    (pstrf,) = scipy.linalg.lapack.get_lapack_funcs(("pstrf",), (block,))
    factor, pivots, rank, _ = pstrf(block, tol=RANGE_TOLERANCE * block.diagonal().max(), lower=1)
    if not 0 < rank < MAX_RANGE_RATIO * len(block):
        return None
    columns = np.empty((len(block), rank), block.dtype)
    columns[pivots - 1] = np.tril(factor)[:, :rank]
    return scipy.linalg.qr(columns, mode="economic", overwrite_a=True, check_finite=False)[0]


def top_eigenpairs(symmetric: np.ndarray, count: int, overwrite: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Compute the c = `count` greatest eigenvalues (c,) of a `symmetric` matrix (n, n), in descending order, and their
    eigenvectors (n, c).

    `count` is at most n. If `overwrite` is true, the matrix is not copied, and its values on and above the diagonal are
    lost.
    """
    subset = [len(symmetric) - count, len(symmetric) - 1]
    diagonal = symmetric.diagonal().copy()
    values, vectors = scipy.linalg.eigh(symmetric.T, subset_by_index=subset, overwrite_a=overwrite, check_finite=False)
    if len(values) < count:  # Of nearly equal eigenvalues, LAPACK's default driver may lose some. `evd` finds all.
        if overwrite:
            below = np.tril(symmetric, -1)
            symmetric = below + below.T + np.diag(diagonal)
        values, vectors = (one[..., -count:] for one in scipy.linalg.eigh(symmetric, driver="evd", check_finite=False))
    return values[::-1], vectors[:, ::-1]


def _top_singular(t: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute at most `count` of the largest singular triplets of t (D, d): left (D, c), values (c,), right (d, c).

    The values descend. Values of at most RANK_TOLERANCE times the largest value are left out, and values above 1 become
    1. Raises InputError if the largest value is greater than 1.001, which rounding cannot explain.
    """
    wide = t.shape[0] <= t.shape[1]
    gram = t @ t.T if wide else t.T @ t
    size = len(gram)
    count = min(count, size)
    vectors = top_eigenpairs(gram, count, overwrite=True)[1]
    # The singular value is computed as the length of t v for the eigenvector v. The error of this length is the square
    # of the error of v, so the length is far more exact than the root of the eigenvalue.
    other = t.T @ vectors if wide else t @ vectors
    singular = np.sqrt(np.einsum("ij,ij->j", other, other))
    if not singular[0] <= 1 + 1e-3:
        raise InputError(
            f"The largest canonical correlation is {singular[0]:g}, but must be at most 1, so rounding errors have"
            " spoilt it. The ridges are too small for single precision. Raise fit.image_ridge and fit.text_ridge."
        )
    kept = singular > RANK_TOLERANCE * singular[0]
    vectors = vectors[:, kept]
    other = other[:, kept] / singular[kept]
    singular = np.minimum(singular[kept], 1)
    return (vectors, singular, other) if wide else (other, singular, vectors)


class CCA(MomentsModel):
    """Canonical correlation analysis, compared by Euclidean distance (Gong et al. 2014, eq. 1).

    The directions maximise trace(W' X'Y U) subject to W' X'X W = I and U' Y'Y U = I. X (n, D) and Y (n, d) are the
    centred views. The code divides all three products by n, and adds a ridge to X'X / n and Y'Y / n. In the code, W is
    `directions.w` (D, c), U is `directions.u` (d, c), and the lambda of the paper is `directions.values` (c,). The
    distance of an image x and a sentence y is |xW - yU|, where x and y are centred.
    """

    solver = CCASolver


class NormalizedCCA(MomentsModel):
    """Normalized CCA: CCA whose directions are scaled by a power of their eigenvalues, compared by cosine similarity.

    score(x, y) = cos(x W diag(lambda^t), y U diag(lambda^t)) (Gong et al. 2014, eq. 2), for centred x and y. W, U and
    lambda are as in CCA, and t is `eigenvalue_power`, which is chosen on dev. lambda is the canonical correlation, or 1
    plus the canonical correlation for `fit.eigenvalues: [gong]`.
    """

    solver = CCASolver
    metric = "inner_product"
    uses_eigenvalue_power = True

    @staticmethod
    def finish(projected: np.ndarray, values: np.ndarray, power: float) -> np.ndarray:
        """Return a copy of `projected` (n, c) whose columns are multiplied by values ** power, for `values` (c,), and
        whose rows are then scaled to unit length."""
        return unit_rows(projected * values**power)


CONSTANT_TOLERANCE = 1e-7
"""Share of the greatest variance of a principal direction. `_whiten` leaves out the directions whose variance is at
most this share, because the data are constant along them."""


class CSASolver(CCASolver):
    """Solver of CCA that also accepts ridges of 0, even if a covariance is singular.

    If either ridge is 0, each view is whitened by its principal directions, and principal directions without variance
    are left out. Otherwise the solution is the same as by CCASolver.
    """

    def solve(self, image_ridge: float, text_ridge: float, dimensions: int) -> Directions:
        if image_ridge and text_ridge:
            return super().solve(image_ridge, text_ridge, dimensions)
        white_x = _whiten(self.moments.xx / self.moments.n, image_ridge * self._scales["image"])
        white_y = _whiten(self.moments.yy / self.moments.n, text_ridge * self._scales["text"])
        t = white_x.T @ (self.moments.xy / self.moments.n) @ white_y
        left, correlations, right = scipy.linalg.svd(t, full_matrices=False, check_finite=False)
        w = white_x @ left if self._basis is None else self._basis @ (white_x @ left)
        signs = column_signs(w)
        return Directions(w * signs, white_y @ right.T * signs, np.minimum(correlations, 1)).first(dimensions)


def _whiten(covariance: np.ndarray, ridge: float) -> np.ndarray:
    """Return a matrix (D, r) that maps a view with this `covariance` (D, D) to r uncorrelated columns.

    Each column of the matrix is a principal direction of the covariance, divided by the root of (variance + ridge),
    where `ridge` is absolute. If `ridge` is 0, the mapped columns therefore have unit variance. r is the rank of the
    covariance.
    """
    variances, directions = scipy.linalg.eigh(covariance.astype(np.float64), check_finite=False)
    kept = variances > CONSTANT_TOLERANCE * variances[-1]
    return directions[:, kept] / np.sqrt(variances[kept] + ridge)


class CSA(MomentsModel):
    """Canonical similarity analysis (Li, Chinchali and Topcu 2025, eq. 3 and 4).

    CCA gives the directions A and B and the correlations rho. With a = xA and b = yB, the score of an image x and a
    sentence y is the sum of rho_i a_i b_i over the first s canonical variables, divided by |a| |b|. In the code, A is
    `directions.w` (D, s), B is `directions.u` (d, s), rho is `directions.values` (s,), and s is chosen on dev. The
    paper has no ridge, as with `fit.image_ridge: [0]` and `fit.text_ridge: [0]`. Normalized CCA instead applies the
    weights before vectors are scaled to unit length. The embeddings (n, s + 2) have two further columns, which give
    them unit length and do not change the scores.
    """

    solver = CSASolver
    metric = "inner_product"

    @staticmethod
    def finish(projected: np.ndarray, values: np.ndarray, power: float) -> np.ndarray:
        """Return a copy of `projected` (n, s) whose rows are scaled to unit length, and whose columns are then
        multiplied by the roots of rho, which are `values` (s,). `power` is not used."""
        return unit_rows(projected) * np.sqrt(values)

    def embed_images(self, features: Features, regions: "RegionSource | None" = None) -> np.ndarray:
        return _to_unit_length(super().embed_images(features), 0)

    def embed_sentences(self, sentences: Sentences) -> np.ndarray:
        return _to_unit_length(super().embed_sentences(sentences), 1)


def _to_unit_length(vectors: np.ndarray, side: int) -> np.ndarray:
    """Return `vectors` (n, s), whose rows have lengths of at most 1, with two more columns that give all rows unit
    length.

    `side` is 0 for images and 1 for sentences. The second new column of images is zero, and the first new column of
    sentences is zero, so that the product of an image and a sentence does not change.
    """
    missing = np.zeros((len(vectors), 2), np.float32)
    missing[:, side] = np.sqrt(np.maximum(1 - np.einsum("ij,ij->i", vectors, vectors), 0))
    return np.hstack([vectors, missing])

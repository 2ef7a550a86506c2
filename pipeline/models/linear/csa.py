"""Canonical similarity analysis, the registered model `csa`."""

import numpy as np
import scipy  # SciPy loads its parts on first use. Embedding does not need them.

from pipeline.models.joint_model import Features, RegionSource, Sentences
from pipeline.models.linear.cca import CCASolver, MomentsModel
from pipeline.models.linear.projection import Directions, column_signs, unit_rows

RANGE_TOLERANCE = 1e-7
"""Share of the greatest variance below which a principal direction of a view counts as constant."""


class CSASolver(CCASolver):
    """Solver of CCA that can also do without a ridge.

    If a ridge is 0, each view is whitened by its principal directions, and directions without variance are left out.
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
    """Return a matrix (D, r) that maps a view with this covariance (D, D) to r uncorrelated columns of unit variance.

    `ridge` is added to each variance. r is the rank of the covariance.
    """
    variances, directions = scipy.linalg.eigh(covariance.astype(np.float64), check_finite=False)
    kept = variances > RANGE_TOLERANCE * variances[-1]
    return directions[:, kept] / np.sqrt(variances[kept] + ridge)


class CSA(MomentsModel):
    """Canonical similarity analysis (Li, Chinchali and Topcu 2025, eq. 3 and 4).

    CCA gives A, B and the correlations rho. The score of an image and a sentence is the sum of rho_i a_i b_i over the
    first s canonical variables, divided by |a| |b|. In the code, A is `directions.w` (D, s), B is `directions.u`
    (d, s), rho is `directions.values` (s,), and s is chosen on dev. The paper has no ridge: `fit.image_ridge: [0]` and
    `fit.text_ridge: [0]`. In normalized CCA, the weights are applied before vectors are scaled to unit length.
    """

    solver = CSASolver
    metric = "inner_product"

    @staticmethod
    def finish(projected: np.ndarray, values: np.ndarray, power: float) -> np.ndarray:
        """Scale the rows of `projected` (n, s) to unit length, then the columns by the roots of rho."""
        return unit_rows(projected) * np.sqrt(values)

    def embed_images(self, features: Features, regions: "RegionSource | None" = None) -> np.ndarray:
        return _to_unit_length(super().embed_images(features), 0)

    def embed_sentences(self, sentences: Sentences) -> np.ndarray:
        return _to_unit_length(super().embed_sentences(sentences), 1)


def _to_unit_length(vectors: np.ndarray, side: int) -> np.ndarray:
    """Add two columns to `vectors` (n, s), so that they have unit length.

    Only the column `side` is not zero. It differs between images and sentences, so that their products do not change.
    """
    missing = np.zeros((len(vectors), 2), np.float32)
    missing[:, side] = np.sqrt(np.maximum(1 - np.einsum("ij,ij->i", vectors, vectors), 0))
    return np.hstack([vectors, missing])

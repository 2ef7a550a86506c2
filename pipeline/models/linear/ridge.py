"""Ridge regression from images to the principal directions of the text: the registered model `ridge`."""

import numpy as np
import scipy  # whose parts it imports when they are used: embedding does without

from pipeline.errors import InputError
from pipeline.models.linear.cca import MomentsModel, top_eigenpairs
from pipeline.models.linear.moments import Moments
from pipeline.models.linear.projection import Directions


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
        """The top `dimensions` directions; `text_ridge` is unused. InputError if X'X is singular."""
        u, variances = self._principal_directions(dimensions)
        cxx = self.moments.xx / self.moments.n
        cxx[np.diag_indices_from(cxx)] += image_ridge * np.trace(cxx) / len(cxx)
        try:
            factor = scipy.linalg.cho_factor(cxx, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            raise InputError(
                f"the covariance of the image view is singular at ridge {image_ridge:g}; raise fit.image_ridge"
            ) from None
        return Directions(scipy.linalg.cho_solve(factor, self.moments.xy @ u / self.moments.n), u, variances)

    def _principal_directions(self, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
        if self._principal is None or len(self._principal[1]) < dimensions:
            values, u = top_eigenpairs(self.moments.yy / self.moments.n, min(dimensions, len(self.moments.yy)))
            values = np.maximum(values, 0)
            self._principal = u * np.sign(u[np.abs(u).argmax(axis=0), np.arange(u.shape[1])]), values
        u, values = self._principal
        return u[:, :dimensions], values[:dimensions]


class RidgeRegression(MomentsModel):
    """Ridge regression with Euclidean retrieval (Gong et al. 2014, section 3).

    min over W of |YU - XW|^2 + lambda |W|^2 with U the principal directions of Y; retrieval by |xW - yU|. Paper to
    code: W `w`, U `u`, lambda from fit.image_ridge, c the number of columns.
    """

    solver = RidgeSolver
    uses_text_ridge = False

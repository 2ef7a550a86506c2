"""The registered model `procrustes`: an orthogonal map between the image view and the text view."""

from dataclasses import replace
from typing import TYPE_CHECKING

import scipy  # SciPy loads its parts on first use. Embedding does not need them.

from pipeline.models.linear.cca import MomentsModel
from pipeline.models.linear.moments import Moments
from pipeline.models.linear.projection import Directions, UnitProjections, column_signs

if TYPE_CHECKING:
    from pipeline.models.linear.training import FitTask
    from pipeline.models.linear.tuning import Tuned


class ProcrustesSolver:
    """Solver of the orthogonal Procrustes problem on one set of moments (Schönemann 1966, eq. 1.8 and 1.9).

    The singular value decomposition X'Y = W S U' gives the orthogonal map T = W U' that minimises |XT - Y|. The solver
    returns W and U, so that an image xW and a sentence yU are compared in the coordinates of U. The values are the
    covariances S / n. The entry of each column of W with the greatest absolute value is positive.
    """

    def __init__(self, moments: Moments) -> None:
        """Decompose the covariance. Raises InputError for fewer than two pairs, and for views that are not finite,
        constant or uncorrelated."""
        moments.require_correlation()
        w, values, u = scipy.linalg.svd(moments.xy / moments.n, full_matrices=False, check_finite=False)
        signs = column_signs(w)
        self._directions = Directions(w * signs, u.T * signs, values)

    def solve(self, image_ridge: float, text_ridge: float, dimensions: int) -> Directions:
        """Return the `dimensions` directions with the greatest covariance. The ridges are not used."""
        return self._directions.first(dimensions)


class Procrustes(UnitProjections, MomentsModel):
    """The orthogonal map of images to sentences, compared by cosine similarity (Schönemann 1966).

    In the code, W is `directions.w` (D, c) and U is `directions.u` (d, c). With c = min(D, d), the score is the cosine
    of the mapped image xT and the sentence y, if D <= d. A smaller c is chosen on dev.
    """

    solver = ProcrustesSolver
    uses_text_ridge = False

    @classmethod
    def fit(cls, task: "FitTask") -> "Tuned":
        without_ridge = task.grid.model_copy(update={"image_ridge": (0.0,)})
        return super().fit(replace(task, grid=without_ridge))

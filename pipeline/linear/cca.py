"""The registered models `cca` and `ncca` (seed 004, section 3)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse

from pipeline.linear.moments import Moments
from pipeline.linear.solver import CanonicalDirections
from pipeline.linear.views import ImageView


class CCA:
    """Canonical correlation analysis with Euclidean retrieval.

    max trace(W' X'Y U) subject to W' X'X W = I and U' Y'Y U = I (equation 1), on centred views with a ridge
    added to each covariance. An image x becomes (x - mean_x) W, a sentence y becomes (y - mean_y) U, and the
    closer the better. Paper to code: W `w`, U `u`, lambda `correlations`, c `w.shape[1]`.
    """

    metric = "euclidean"
    sentence_view = "tfidf"
    uses_eigenvalue_power = False

    def __init__(
        self,
        view: ImageView,
        mean_x: np.ndarray,
        mean_y: np.ndarray,
        directions: CanonicalDirections,
        eigenvalue_power: float = 0,
    ) -> None:
        self.view = view
        self.mean_x = mean_x.astype(np.float32)
        self.mean_y = mean_y.astype(np.float32)
        self.directions = directions
        self.eigenvalue_power = eigenvalue_power

    @classmethod
    def from_directions(
        cls, view: ImageView, moments: Moments, directions: CanonicalDirections, dimensions: int, power: float
    ) -> "CCA":
        """The model on the first `dimensions` of `directions`, which were solved on `moments`."""
        w, u, correlations = directions.w, directions.u, directions.correlations
        kept = CanonicalDirections(w[:, :dimensions], u[:, :dimensions], correlations[:dimensions])
        return cls(view, moments.mean_x, moments.mean_y, kept, power)

    @property
    def encoders(self) -> tuple[str, ...]:
        return self.view.encoders

    def embed_images(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, c) float32 from `features`, encoder -> (n, its dim)."""
        projected = (self.view.stack(features) - self.mean_x) @ self.directions.w
        return self.finish(projected, self.directions.correlations, self.eigenvalue_power)

    def embed_sentences(self, sentences: sparse.csr_array) -> np.ndarray:
        """(n, c) float32 from sparse tf-idf (n, d)."""
        u = self.directions.u
        return self.finish(sentences @ u - self.mean_y @ u, self.directions.correlations, self.eigenvalue_power)

    @staticmethod
    def finish(projected: np.ndarray, correlations: np.ndarray, power: float) -> np.ndarray:
        """From canonical variates (n, c) to embeddings (n, c); here they are the same."""
        return projected

    def settings(self) -> dict[str, Any]:
        return {**vars(self.view), "eigenvalue_power": self.eigenvalue_power}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"mean_x": self.mean_x, "mean_y": self.mean_y, **vars(self.directions)}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "CCA":
        """The model that `settings` and `tensors` came from."""
        directions = CanonicalDirections(tensors["w"], tensors["u"], tensors["correlations"])
        view, power = ImageView.from_dict(settings), settings["eigenvalue_power"]
        return cls(view, tensors["mean_x"], tensors["mean_y"], directions, power)


class NormalizedCCA(CCA):
    """Normalized CCA: directions scaled by a power of their eigenvalues, cosine similarity.

    score(x, y) = cos(x W diag(lambda^t), y U diag(lambda^t)) (equation 2); t is `eigenvalue_power`.
    """

    metric = "inner_product"
    uses_eigenvalue_power = True

    @staticmethod
    def finish(projected: np.ndarray, correlations: np.ndarray, power: float) -> np.ndarray:
        """Scale by correlations ** power, then to unit length."""
        scaled = projected * correlations**power
        length = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
        return scaled / np.maximum(length, np.finfo(np.float32).tiny)

"""What all linear models share: a projection of each view."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy import sparse

from pipeline.linear.moments import Moments
from pipeline.linear.views import ImageView


@dataclass(frozen=True)
class Directions:
    """The columns of W (D, c) and U (d, c), best first, and a value (c,) for each: what it is, the solver says."""

    w: np.ndarray
    u: np.ndarray
    values: np.ndarray


class Solver(Protocol):
    """Finds directions on one set of moments for any number of relative ridges, reusing what it has computed."""

    def __init__(self, moments: Moments) -> None: ...

    def solve(self, image_ridge: float, text_ridge: float, dimensions: int) -> Directions: ...


class LinearModel:
    """An image x becomes finish((x - mean_x) W), a sentence y becomes finish((y - mean_y) U).

    A registered model names its `solver`, its `metric`, and which axes of the grid matter to it.
    """

    solver: ClassVar[type[Solver]]
    metric: ClassVar[str] = "euclidean"
    uses_text_ridge: ClassVar[bool] = True
    uses_eigenvalue_power: ClassVar[bool] = False
    sentence_view: ClassVar[str] = "tfidf"

    def __init__(
        self,
        view: ImageView,
        mean_x: np.ndarray,
        mean_y: np.ndarray,
        directions: Directions,
        eigenvalue_power: float = 0,
    ) -> None:
        self.view = view
        self.mean_x = mean_x.astype(np.float32)
        self.mean_y = mean_y.astype(np.float32)
        self.directions = directions
        self.eigenvalue_power = eigenvalue_power

    @classmethod
    def from_directions(
        cls, view: ImageView, moments: Moments, directions: Directions, dimensions: int, power: float
    ) -> "LinearModel":
        """The model on the first `dimensions` of `directions`, which were solved on `moments`."""
        w, u, values = directions.w, directions.u, directions.values
        kept = Directions(w[:, :dimensions], u[:, :dimensions], values[:dimensions])
        return cls(view, moments.mean_x, moments.mean_y, kept, power)

    @staticmethod
    def finish(projected: np.ndarray, values: np.ndarray, power: float) -> np.ndarray:
        """From projections (n, c) to embeddings (n, c); the same unless a model says otherwise."""
        return projected

    @property
    def encoders(self) -> tuple[str, ...]:
        return self.view.encoders

    def embed_images(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, c) float32 from `features`, encoder -> (n, its dim)."""
        projected = (self.view.stack(features) - self.mean_x) @ self.directions.w
        return self.finish(projected, self.directions.values, self.eigenvalue_power)

    def embed_sentences(self, sentences: sparse.csr_array) -> np.ndarray:
        """(n, c) float32 from sparse tf-idf (n, d)."""
        u = self.directions.u
        return self.finish(sentences @ u - self.mean_y @ u, self.directions.values, self.eigenvalue_power)

    def settings(self) -> dict[str, Any]:
        return {**vars(self.view), "eigenvalue_power": self.eigenvalue_power}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"mean_x": self.mean_x, "mean_y": self.mean_y, **vars(self.directions)}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "LinearModel":
        """The model that `settings` and `tensors` came from."""
        view, power = ImageView.from_dict(settings), settings["eigenvalue_power"]
        directions = Directions(tensors["w"], tensors["u"], tensors["values"])
        return cls(view, tensors["mean_x"], tensors["mean_y"], directions, power)

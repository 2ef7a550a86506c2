"""The base of all linear models: a projection of each view."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pipeline.compute.precision import scale_to_unit_length
from pipeline.models.linear.feature_maps import FeatureMaps, mapped_columns, project
from pipeline.models.linear.views import ImageView, TextView

if TYPE_CHECKING:
    import torch

    from pipeline.models.linear.device_views import Projections


EIGENVALUES = {"correlation": 0.0, "gong": 1.0}
"""Form of the CCA problem -> its eigenvalues less the canonical correlations rho. `correlation`: Cxy u = rho Cxx w and
Cyx w = rho Cyy u. `gong`: all blocks against the diagonal ones, as Gong et al.'s published code (MultiviewCCA) solves
it, so that lambda = 1 + rho."""


@dataclass(frozen=True)
class Directions:
    """The columns of W (D, c) and U (d, c), best first, each with a value (c,); its meaning depends on the solver."""

    w: np.ndarray
    u: np.ndarray
    values: np.ndarray

    def first(self, count: int) -> "Directions":
        return Directions(self.w[:, :count], self.u[:, :count], self.values[:count])


class LinearModel:
    """An image x becomes finish((x - mean_x) W), a sentence y becomes finish((y - mean_y) U).

    If the model has `maps`, x and y are the mapped views. A registered model names its `metric`, the axes of the grid
    that matter to it, whether dev chooses among them `by_mean_rank` (else by the recall sum), and its `solver`:
    solver(moments).solve(image_ridge, text_ridge, dimensions) gives Directions for any number of relative ridges.
    """

    solver: ClassVar[Any]
    multi_vector: ClassVar[bool] = False
    metric: ClassVar[str] = "euclidean"
    uses_text_ridge: ClassVar[bool] = True
    uses_eigenvalue_power: ClassVar[bool] = False
    by_mean_rank: ClassVar[bool] = False
    sentence_view: ClassVar[str] = "vectors"

    def __init__(
        self,
        view: ImageView,
        text: TextView,
        mean_x: np.ndarray,
        mean_y: np.ndarray,
        directions: Directions,
        eigenvalue_power: float = 0,
        maps: FeatureMaps | None = None,
    ) -> None:
        self.view, self.text = view, text
        self.mean_x = mean_x.astype(np.float32)
        self.mean_y = mean_y.astype(np.float32)
        self.directions = Directions(*(part.astype(np.float32, copy=False) for part in vars(directions).values()))
        self.eigenvalue_power = eigenvalue_power
        self.maps = maps or FeatureMaps()
        self._projections: Projections | None = None

    def to(self, device: "torch.device") -> "LinearModel":
        """This model, which embeds on `device` with torch from now on, unless one of its maps needs numpy."""
        if self.maps.fit_devices():
            from pipeline.models.linear.device_views import Projections

            self._projections = Projections(self, device)
        return self

    @staticmethod
    def finish(projected: np.ndarray, values: np.ndarray, power: float) -> np.ndarray:
        """From projections (n, c) to embeddings (n, c); by default the same."""
        return projected

    @property
    def encoders(self) -> tuple[str, ...]:
        return self.view.encoders

    @property
    def text_encoders(self) -> tuple[str, ...]:
        return self.text.encoders

    def embed_images(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, c) float32 from `features`, encoder -> (n, its dim)."""
        if self._projections:
            return self._finish(self._projections.images(features))
        columns = mapped_columns(self.view.stack(features), self.maps.image)
        return self._finish(project(columns, self.mean_x, self.directions.w))

    def embed_sentences(self, sentences: Mapping[str, Any]) -> np.ndarray:
        """(n, c) float32 from `sentences`, text encoder -> (n, its dim), sparse or dense."""
        y = self.text.stack(sentences)
        if self._projections:
            return self._finish(self._projections.sentences(y))
        return self._finish(project(mapped_columns(y, self.maps.text), self.mean_y, self.directions.u))

    def _finish(self, projected: np.ndarray) -> np.ndarray:
        return self.finish(projected, self.directions.values, self.eigenvalue_power)

    def settings(self) -> dict[str, Any]:
        views = {**vars(self.view), "text": self.text.to_dict()}
        return {**views, "eigenvalue_power": self.eigenvalue_power, "maps": self.maps.settings()}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"mean_x": self.mean_x, "mean_y": self.mean_y, **vars(self.directions), **self.maps.tensors()}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "LinearModel":
        """The model that `settings` and `tensors` came from."""
        view, text = ImageView.from_dict(settings), TextView.from_dict(settings["text"])
        power = settings["eigenvalue_power"]
        directions = Directions(tensors["w"], tensors["u"], tensors["values"])
        maps = FeatureMaps.from_parts(settings["maps"], tensors)
        return cls(view, text, tensors["mean_x"], tensors["mean_y"], directions, power, maps)


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Return a copy of `rows` (n, c) whose rows have unit length. Rows of zeros stay as they are."""
    return scale_to_unit_length(rows.copy())

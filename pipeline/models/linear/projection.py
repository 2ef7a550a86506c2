"""What all linear models share: a projection of each view."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from scipy import sparse

from pipeline.models.linear.feature_maps import FeatureMaps, mapped_columns, project
from pipeline.models.linear.moments import Moments
from pipeline.models.linear.views import ImageView

if TYPE_CHECKING:
    import torch

    from pipeline.models.linear.device_projection import Projections


@dataclass(frozen=True)
class Directions:
    """The columns of W (D, c) and U (d, c), best first, and a value (c,) for each: what it is, the solver says."""

    w: np.ndarray
    u: np.ndarray
    values: np.ndarray

    def single(self) -> "Directions":
        """In single precision, as models keep them."""
        return Directions(*(value.astype(np.float32, copy=False) for value in vars(self).values()))

    def first(self, count: int) -> "Directions":
        return Directions(self.w[:, :count], self.u[:, :count], self.values[:count])


class Solver(Protocol):
    """Finds directions on one set of moments for any number of relative ridges, reusing what it has computed."""

    def __init__(self, moments: Moments) -> None: ...

    def solve(self, image_ridge: float, text_ridge: float, dimensions: int) -> Directions: ...


class LinearModel:
    """An image x becomes finish((x - mean_x) W), a sentence y becomes finish((y - mean_y) U).

    Where the model has `maps`, x and y stand for the mapped views. A registered model names its `solver`, its
    `metric`, and which axes of the grid matter to it.
    """

    solver: ClassVar[type[Solver]]
    multi_vector: ClassVar[bool] = False
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
        maps: FeatureMaps | None = None,
    ) -> None:
        self.view = view
        self.mean_x = mean_x.astype(np.float32)
        self.mean_y = mean_y.astype(np.float32)
        self.directions = directions.single()
        self.eigenvalue_power = eigenvalue_power
        self.maps = maps or FeatureMaps()
        self._projections: Projections | None = None

    def to(self, device: "torch.device") -> "LinearModel":
        """This model, which from now on embeds on `device` by torch, unless one of its maps is numpy's alone."""
        if self.maps.fit_devices():
            from pipeline.models.linear.device_projection import DeviceProjection, Projections

            image = DeviceProjection(self.mean_x, self.directions.w, self.maps.image, device)
            text = DeviceProjection(self.mean_y, self.directions.u, self.maps.text, device)
            self._projections = Projections(self.view, image, text, device)
        return self

    @staticmethod
    def finish(projected: np.ndarray, values: np.ndarray, power: float) -> np.ndarray:
        """From projections (n, c) to embeddings (n, c); the same unless a model says otherwise."""
        return projected

    @property
    def encoders(self) -> tuple[str, ...]:
        return self.view.encoders

    def embed_images(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, c) float32 from `features`, encoder -> (n, its dim)."""
        if self._projections:
            projected = self._projections.images(features)
        else:
            columns = mapped_columns(self.view.stack(features), self.maps.image)
            projected = project(columns, self.mean_x, self.directions.w)
        return self.finish(projected, self.directions.values, self.eigenvalue_power)

    def embed_sentences(self, sentences: sparse.csr_array) -> np.ndarray:
        """(n, c) float32 from sparse tf-idf (n, d)."""
        if self._projections:
            projected = self._projections.sentences(sentences)
        else:
            columns = mapped_columns(sentences, self.maps.text)
            projected = project(columns, self.mean_y, self.directions.u)
        return self.finish(projected, self.directions.values, self.eigenvalue_power)

    def settings(self) -> dict[str, Any]:
        return {**vars(self.view), "eigenvalue_power": self.eigenvalue_power, "maps": self.maps.settings()}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"mean_x": self.mean_x, "mean_y": self.mean_y, **vars(self.directions), **self.maps.tensors()}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "LinearModel":
        """The model that `settings` and `tensors` came from."""
        view, power = ImageView.from_dict(settings), settings["eigenvalue_power"]
        directions = Directions(tensors["w"], tensors["u"], tensors["values"])
        maps = FeatureMaps.from_parts(settings["maps"], tensors)
        return cls(view, tensors["mean_x"], tensors["mean_y"], directions, power, maps)


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """`rows` (n, c) with every row that is not zero at unit length."""
    length = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    return rows / np.maximum(length, np.finfo(np.float32).tiny)

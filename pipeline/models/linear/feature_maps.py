"""FeatureMaps: columns that a view gains by a map that is not linear, so that moments alone cannot give them."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy import sparse

Rows = np.ndarray | sparse.csr_array
"""Images (n, D) float32, or sentences (n, d) sparse."""


class FeatureMap(Protocol):
    """rows -> (n, dim) float32. The view's own columns stay in front of them where `keep`, else they are replaced.

    One that a GPU can compute has `on(device)` too: the same from tensors to tensors there.
    """

    kind: ClassVar[str]
    keep: bool

    @property
    def dim(self) -> int: ...

    def __call__(self, rows: Rows) -> np.ndarray: ...

    def settings(self) -> dict[str, Any]: ...

    def tensors(self) -> dict[str, np.ndarray]: ...

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "FeatureMap": ...


MAPS: dict[str, str] = {
    "fourier": "pipeline.models.linear.fourier:FourierFeatures",
    "kernel": "pipeline.models.linear.kernels:KernelFeatures",
    "neighbours": "pipeline.models.linear.neighbours:NeighbourText",
}
"""Kind of feature map -> where its class stands."""


@dataclass(frozen=True)
class FeatureMaps:
    """What is applied to each view before its projection; None leaves a view as it is."""

    image: FeatureMap | None = None
    text: FeatureMap | None = None

    def settings(self) -> dict[str, Any]:
        """JSON values from which, with `tensors`, `from_parts` makes the maps again."""
        return {side: {"kind": feature_map.kind, **feature_map.settings()} for side, feature_map in self._present()}

    def tensors(self) -> dict[str, np.ndarray]:
        """The tensors of both maps, named `image.<name>` and `text.<name>`."""
        return {
            f"{side}.{name}": value
            for side, feature_map in self._present()
            for name, value in feature_map.tensors().items()
        }

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "FeatureMaps":
        """The maps that `settings` and `tensors` came from; other tensors are left alone."""
        maps = {}
        for side, value in settings.items():
            own = {name.removeprefix(f"{side}."): t for name, t in tensors.items() if name.startswith(f"{side}.")}
            module, _, attribute = MAPS[value["kind"]].partition(":")
            maps[side] = getattr(importlib.import_module(module), attribute).from_parts(value, own)
        return cls(**maps)

    def fit_devices(self) -> bool:
        """Whether a GPU can compute them all."""
        return all(hasattr(feature_map, "on") for _, feature_map in self._present())

    def _present(self) -> list[tuple[str, FeatureMap]]:
        return [(side, feature_map) for side, feature_map in vars(self).items() if feature_map is not None]


def mapped_columns(rows: Rows, feature_map: FeatureMap | None) -> list[Rows]:
    """The blocks of columns of a mapped view, left to right."""
    if feature_map is None:
        return [rows]
    return [rows, feature_map(rows)] if feature_map.keep else [feature_map(rows)]


def project(columns: Sequence[Rows], mean: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """(n, c): (columns - mean) matrix, for the blocks `columns` of a view with `mean` (p,) and `matrix` (p, c)."""
    total = np.zeros((columns[0].shape[0], matrix.shape[1]), np.float32)
    start = 0
    for block in columns:
        part = slice(start, start + block.shape[1])
        # A sparse block stays sparse: its mean is subtracted after the product.
        if sparse.issparse(block):
            total += block @ matrix[part] - mean[part] @ matrix[part]
        else:
            total += (block - mean[part]) @ matrix[part]
        start = part.stop
    return total

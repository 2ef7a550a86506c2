"""Feature maps: columns that a view gains by a map that is not linear, so that moments alone cannot give them."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import scipy  # whose parts it imports when they are used: dense views do without

from pipeline.models.linear.views import Rows, is_sparse, parts_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class FeatureMap(Protocol):
    """rows -> (n, dim) float32. With `keep`, the view's own columns stay in front of them, else they are replaced.

    Like a model, it has `settings()`, `tensors()` and `from_parts(settings, tensors)`. One that a GPU can compute also
    has `on(device)`: the same map, from tensors to tensors there.
    """

    kind: ClassVar[str]
    keep: bool
    dim: int

    def __call__(self, rows: Rows) -> np.ndarray: ...


MAPS: dict[str, str] = {
    "fourier": "pipeline.models.linear.fourier:FourierFeatures",
    "kernel": "pipeline.models.linear.kernels:KernelFeatures",
    "neighbours": "pipeline.models.linear.neighbours:NeighbourText",
}
"""Kind of feature map -> module:class."""


@dataclass(frozen=True)
class FeatureMaps:
    """The map applied to each view before its projection; None leaves a view unchanged."""

    image: FeatureMap | None = None
    text: FeatureMap | None = None

    def settings(self) -> dict[str, Any]:
        """JSON values for `from_parts`."""
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
        """The maps that `settings` and `tensors` came from; ignores other tensors."""
        maps = {}
        for side, value in settings.items():
            own = {name.removeprefix(f"{side}."): t for name, t in tensors.items() if name.startswith(f"{side}.")}
            module, _, attribute = MAPS[value["kind"]].partition(":")
            maps[side] = getattr(importlib.import_module(module), attribute).from_parts(value, own)
        return cls(**maps)

    def fit_devices(self) -> bool:
        """Whether a GPU can compute all maps."""
        return all(hasattr(feature_map, "on") for _, feature_map in self._present())

    def _present(self) -> list[tuple[str, FeatureMap]]:
        return [(side, feature_map) for side, feature_map in vars(self).items() if feature_map is not None]


def sparse_parts(rows: "csr_array") -> dict[str, np.ndarray]:
    return {name: getattr(rows, name) for name in ("data", "indices", "indptr")}


def from_sparse_parts(tensors: Mapping[str, np.ndarray], shape: Sequence[int]) -> "csr_array":
    """The inverse of `sparse_parts`."""
    return scipy.sparse.csr_array((tensors["data"], tensors["indices"], tensors["indptr"]), shape=tuple(shape))


def mapped_columns(rows: Rows, feature_map: FeatureMap | None) -> list[Any]:
    """The blocks of columns of a mapped view, from left to right."""
    if feature_map is None:
        return list(parts_of(rows))
    return [*(parts_of(rows) if feature_map.keep else ()), feature_map(rows)]


def project(columns: Sequence[Any], mean: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """(n, c): (columns - mean) matrix, for the blocks `columns` of a view with `mean` (p,) and `matrix` (p, c)."""
    total = np.zeros((columns[0].shape[0], matrix.shape[1]), np.float32)
    start = 0
    for block in columns:
        part = slice(start, start + block.shape[1])
        # A sparse block stays sparse: its mean is subtracted after the product.
        if is_sparse(block):
            total += block @ matrix[part] - mean[part] @ matrix[part]
        else:
            total += (block - mean[part]) @ matrix[part]
        start = part.stop
    return total

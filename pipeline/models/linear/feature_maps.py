"""Feature maps: columns that a view gains by a map that is not linear, so that moments alone cannot give them. Random
Fourier features (Gong et al. 2014, section 4.1) and the text of the nearest auxiliary images (section 4.2)."""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, overload, runtime_checkable

import numpy as np
import scipy  # whose parts it imports when they are used: dense views do without

from pipeline.compute import runtime
from pipeline.compute.device import upload
from pipeline.errors import InputError
from pipeline.models.joint_model import Settings, TextVectors, read_number, read_setting
from pipeline.models.linear.views import (
    Columns,
    Rows,
    ViewBlock,
    as_sparse,
    is_sparse,
    matrices_of,
    shape_of,
    spans,
    stack_blocks,
    sum_by_owner,
)

if TYPE_CHECKING:
    import torch
    from scipy.sparse import csr_array
    from torch import Tensor


class FeatureMap(Protocol):
    """A map from rows (n, d) to (n, `dim`) float32.

    With `keep`, the view's own columns stay in front of the new columns; otherwise they are replaced.
    """

    kind: ClassVar[str]
    dim: int

    @property
    def keep(self) -> bool: ...

    def __call__(self, rows: Rows) -> np.ndarray: ...

    def settings(self) -> dict[str, Any]: ...

    def tensors(self) -> dict[str, np.ndarray]: ...


@runtime_checkable
class DeviceMap(FeatureMap, Protocol):
    """A map that a GPU can compute."""

    def on(self, device: "torch.device") -> "Callable[[Tensor | Columns[Tensor]], Tensor]":
        """Return the same map from tensors on `device` to tensors there."""
        ...


MAPS: dict[str, str] = {
    "fourier": "pipeline.models.linear.feature_maps:FourierFeatures",
    "kernel": "pipeline.models.linear.kernels:KernelFeatures",
    "neighbours": "pipeline.models.linear.feature_maps:NeighbourText",
    "tanh": "pipeline.models.linear.feature_maps:TanhFeatures",
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
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "FeatureMaps":
        """Restore the maps of `settings` and `tensors`; other tensors are ignored."""
        maps = {}
        for side in settings:
            value, prefix = read_setting(settings, side, dict), f"{side}."
            own = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
            module, _, attribute = MAPS[value["kind"]].partition(":")
            maps[side] = getattr(importlib.import_module(module), attribute).from_parts(value, own)
        return cls(**maps)

    def can_use_gpu(self) -> bool:
        """Return whether a GPU can compute all maps."""
        return all(isinstance(feature_map, DeviceMap) for _, feature_map in self._present())

    def _present(self) -> list[tuple[str, FeatureMap]]:
        return [(side, feature_map) for side, feature_map in vars(self).items() if feature_map is not None]


MAX_COLUMNS = 1 << 24
"""Columns of a stored sparse matrix at most."""


def sparse_parts(rows: "csr_array") -> dict[str, np.ndarray]:
    return {name: getattr(rows, name) for name in ("data", "indices", "indptr")}


def from_sparse_parts(tensors: Mapping[str, np.ndarray], shape: Sequence[int]) -> "csr_array":
    """The inverse of `sparse_parts`. ValueError for more columns than any vocabulary has."""
    if shape[1] > MAX_COLUMNS:
        raise ValueError(f"it has {shape[1]} columns, more than {MAX_COLUMNS}")
    return scipy.sparse.csr_array((tensors["data"], tensors["indices"], tensors["indptr"]), shape=tuple(shape))


def mapped_columns(rows: Rows, feature_map: FeatureMap | None) -> "list[TextVectors]":
    """Return the blocks of columns of a mapped view, from left to right."""
    if feature_map is None:
        return list(matrices_of(rows))
    return [*(matrices_of(rows) if feature_map.keep else ()), feature_map(rows)]


@overload
def project(columns: "Sequence[TextVectors]", mean: np.ndarray, matrix: np.ndarray) -> np.ndarray: ...
@overload
def project(columns: "Sequence[Tensor]", mean: "Tensor", matrix: "Tensor") -> "Tensor": ...
def project(
    columns: "Sequence[TextVectors | Tensor]", mean: "np.ndarray | Tensor", matrix: "np.ndarray | Tensor"
) -> "np.ndarray | Tensor":
    """Compute (columns - mean) matrix, (n, c) float32, for the blocks `columns` of a view with `mean` (p,) and `matrix`
    (p, c), which are all arrays, or all tensors of one device."""
    products = []
    for part, block in spans(Columns(columns)):
        # A sparse block stays sparse: its mean is subtracted after the product.
        if is_sparse(block):
            products.append(block @ matrix[part] - mean[part] @ matrix[part])
        else:
            products.append((block - mean[part]) @ matrix[part])
    total = reduce(add, products)
    return total.astype(np.float32, copy=False) if isinstance(total, np.ndarray) else total


PIECE = 512
"""Number of rows in one product, whose results stay in cache."""
NEIGHBOUR = 50
"""Its distance is sigma, in the paper."""


@dataclass(frozen=True)
class FourierMap:
    """phi(z) = sqrt(2) cos(zR + b) (m columns) with fixed random R and b.

    `frequencies` are R (c1, m) and `phases` b (m,). Without phases, `frequencies` are (c1, m / 2) and used twice, with
    b = 0 and with b = -pi / 2: cosines, then sines.
    """

    frequencies: np.ndarray
    phases: np.ndarray | None = None

    @classmethod
    def draw(cls, rule: str, dim: int, features: int, sigma: float, rng: np.random.Generator) -> "FourierMap":
        """A map of `dim` values to `features` (even for `cosine-sine`); `sigma` is a distance.

        `cosine-sine`: cosines and sines of half as many frequencies, R ~ Normal(0, 1 / sigma^2) (Rahimi and Recht
        2007): phi(z) phi(z')' / m estimates the Gaussian kernel exp(-|z - z'|^2 / (2 sigma^2)), exactly for z = z'.
        `paper`: R ~ Normal(0, sigma^2), b ~ Unif[0, 1], as printed in Gong et al. 2014: the frequencies grow with the
        distance between rows, and the phases cover a sixth of the circle.
        """
        if rule == "cosine-sine":
            return cls(rng.standard_normal((dim, features // 2), np.float32) / np.float32(sigma))
        normal = rng.standard_normal((dim, features), np.float32)
        return cls(normal * np.float32(sigma), rng.random(features, np.float32))

    @property
    def dim(self) -> int:
        """m"""
        return self.frequencies.shape[1] * (2 if self.phases is None else 1)

    def __call__(self, z: np.ndarray, scale: float = 1.0) -> np.ndarray:
        """`scale` times phi(z) (n, m) from z (n, c1) float32."""
        out = np.empty((len(z), self.dim), np.float32)
        size = self.frequencies.shape[1]

        def compute(start: int) -> None:
            rows, piece = z[start : start + PIECE], out[start : start + PIECE]
            if self.phases is None:
                angles = rows @ self.frequencies
                np.cos(angles, out=piece[:, :size])
                np.sin(angles, out=piece[:, size:])
            else:
                np.matmul(rows, self.frequencies, out=piece)
                piece += self.phases
                np.cos(piece, out=piece)
            piece *= np.float32(scale * np.sqrt(2))

        if len(z) <= PIECE:
            compute(0)
        else:  # NumPy computes cosines on one thread
            with ThreadPoolExecutor(runtime.threads()) as threads:
                list(threads.map(compute, range(0, len(z), PIECE)))
        return out


class WeightedMap:
    """A map whose columns stand beside the view's own, times a `weight` that balances them against these."""

    keep = True
    weight: float

    def weighted(self, weight: float) -> Self:
        """The same map with another weight."""
        other = copy(self)
        other.weight = weight
        return other

    def settings(self) -> dict[str, Any]:
        return {"weight": float(self.weight)}


class FourierFeatures(WeightedMap):
    """phi(xA) beside x: a row gains the columns `weight` * phi((row - mean) A).

    A `matrix` (D, c1) is the auxiliary projection with columns times their eigenvalues ** t; `offset` (c1,) is mean A.
    """

    kind: ClassVar[str] = "fourier"

    def __init__(self, matrix: np.ndarray, offset: np.ndarray, fourier: FourierMap, weight: float = 1.0) -> None:
        self.matrix, self.offset, self.fourier, self.weight = matrix, offset, fourier, weight
        self.dim = fourier.dim

    def __call__(self, rows: Rows) -> np.ndarray:
        return self.fourier(rows @ self.matrix - self.offset, self.weight)

    def on(self, device: "torch.device") -> "Callable[[Tensor | Columns[Tensor]], Tensor]":
        """Return the same map for tensors on `device`, dense or sparse."""
        import torch

        parts = {name: upload(part, device) for name, part in self.tensors().items()}

        def mapped(rows: "Tensor | Columns[Tensor]") -> "Tensor":
            z = rows @ parts["matrix"] - parts["offset"]
            if "phases" in parts:
                columns = parts["phases"].addmm(z, parts["frequencies"]).cos_()
            else:
                angles = z @ parts["frequencies"]
                columns = torch.cat((angles.cos(), angles.sin()), dim=1)
            return columns.mul_(self.weight * 2**0.5)

        return mapped

    def tensors(self) -> dict[str, np.ndarray]:
        drawn = {name: value for name, value in vars(self.fourier).items() if value is not None}
        return {"matrix": self.matrix, "offset": self.offset, **drawn}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "FourierFeatures":
        fourier = FourierMap(tensors["frequencies"], tensors.get("phases"))
        return cls(tensors["matrix"], tensors["offset"], fourier, read_number(settings, "weight"))


class TanhFeatures(WeightedMap):
    """tanh(xA) beside x: a row gains the columns `weight` * tanh(row A - offset), with A `matrix` (D, c1)."""

    kind: ClassVar[str] = "tanh"

    def __init__(self, matrix: np.ndarray, offset: np.ndarray, weight: float = 1.0) -> None:
        self.matrix, self.offset, self.weight = matrix, offset, weight
        self.dim = matrix.shape[1]

    def __call__(self, rows: Rows) -> np.ndarray:
        return np.float32(self.weight) * np.tanh(rows @ self.matrix - self.offset)

    def tensors(self) -> dict[str, np.ndarray]:
        return {"matrix": self.matrix, "offset": self.offset}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "TanhFeatures":
        return cls(tensors["matrix"], tensors["offset"], read_number(settings, "weight"))


def measure_bandwidth(z: np.ndarray) -> float:
    """Compute sigma: the mean distance to the 50th nearest neighbour among the rows of z (n, c1). Raises InputError for
    fewer than two rows."""
    from sklearn.neighbors import NearestNeighbors  # takes a second to import, and only a fit needs it

    if len(z) < 2:
        raise InputError(f"sae needs at least 2 images and sentences in the train split, not {len(z)}; add some")
    neighbour = min(NEIGHBOUR, len(z) - 1)
    distances, _ = NearestNeighbors(n_neighbors=neighbour).fit(z).kneighbors()
    return float(distances[:, -1].mean())


class ReservoirSample:
    """A random sample of `count` of all added rows, or all of them. Each row has the same probability. The sample
    depends on `rng` and the order of the rows, not on where blocks end."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.count = count
        self._rng = rng
        self._keys = np.zeros(0)
        self._kept: Rows | None = None

    def add(self, rows: Rows) -> None:
        """Add the rows (n, d) of a block, dense or sparse."""
        keys = np.concatenate([self._keys, self._rng.random(shape_of(rows)[0])])
        chosen = np.arange(len(keys))
        if len(keys) > self.count:
            chosen = np.sort(np.argpartition(keys, self.count - 1)[: self.count])
        count_before = len(self._keys)
        old = chosen[chosen < count_before]
        new = chosen[chosen >= count_before] - count_before
        kept = rows[:0] if self._kept is None else self._kept
        if len(new):
            kept = stack_blocks([kept[old], rows[new]])
            self._keys = keys[chosen]
        self._kept = kept

    def rows(self) -> Rows:
        """Return the sample, (at most `count`, d), in the order in which its rows were added."""
        assert self._kept is not None
        return self._kept


class NeighbourText(WeightedMap):
    """`weight` * T^(x) beside x: T^ is the mean vector of the documents of the k auxiliary images nearest to x.

    FAISS finds the nearest by exact Euclidean distance in the image view. The model holds the auxiliary images
    `gallery` (n, D) float16 and their `texts` (n, d) sparse, so that it can embed new images.
    """

    kind: ClassVar[str] = "neighbours"

    def __init__(self, gallery: np.ndarray, texts: "csr_array", neighbours: int, weight: float = 1.0) -> None:
        self.gallery, self.texts, self.weight = gallery, texts, weight
        self.neighbours = min(neighbours, len(gallery))
        self.dim = shape_of(texts)[1]

    @classmethod
    def build(cls, blocks: Iterable[ViewBlock], neighbours: int) -> "NeighbourText":
        """With the images of `blocks` as the gallery; several documents of one image are summed."""
        galleries, texts = [], []
        for block in blocks:
            galleries.append(block.x.astype(np.float16))
            texts.append(as_sparse(sum_by_owner(block.y, block.owners, len(block.x))))
        return cls(np.concatenate(galleries), scipy.sparse.vstack(texts, format="csr"), neighbours)

    def __call__(self, rows: Rows) -> np.ndarray:
        import faiss

        _, nearest = faiss.knn(np.ascontiguousarray(rows, np.float32), self.gallery.astype(np.float32), self.neighbours)
        pointers = np.arange(0, nearest.size + 1, self.neighbours)
        weights = np.full(nearest.size, self.weight / self.neighbours, np.float32)
        mean = scipy.sparse.csr_array((weights, nearest.ravel(), pointers), shape=(len(nearest), len(self.gallery)))
        return (mean @ self.texts).toarray()

    def settings(self) -> dict[str, Any]:
        return {"neighbours": self.neighbours, "terms": self.dim, **super().settings()}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"gallery": self.gallery, **sparse_parts(self.texts)}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "NeighbourText":
        texts = from_sparse_parts(tensors, (len(tensors["gallery"]), read_setting(settings, "terms", int)))
        return cls(
            tensors["gallery"], texts, read_setting(settings, "neighbours", int), read_number(settings, "weight")
        )

"""Feature maps: nonlinear functions of the rows of a view, whose results become columns of the view.

The moments of the new columns cannot be computed from the moments of the view. A second pass over the pairs sums them.
The maps are random Fourier features and tanh features (Gong et al. 2014, section 4.1), the mean weak text of the
nearest auxiliary images (section 4.2), and kernels (pipeline.models.linear.kernels).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, overload, runtime_checkable

import numpy as np
import scipy  # SciPy loads its parts on first use, so dense views do not load them.

from pipeline.compute import runtime
from pipeline.compute.device import upload
from pipeline.config.registry import import_object
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
    """A map from rows (n, d) of a view to new columns (n, `dim`) float32. Each call returns a new array, which the
    caller may change.

    If `keep` is true, the new columns follow the columns of the view. Otherwise they replace the columns of the view.
    `settings()` are JSON values and `tensors()` are arrays by name, from which the class method `from_parts` restores
    the map. `kind` is the key of MAPS by which `FeatureMaps.from_parts` finds the class.
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
    """A feature map that PyTorch can compute on a GPU. Feature maps without the method `on` are computed with NumPy on
    the CPU."""

    def on(self, device: "torch.device") -> "Callable[[Tensor | Columns[Tensor]], Tensor]":
        """Return a function that computes this map on `device`, from rows of the view (n, d) to new columns
        (n, `dim`), both as tensors on this device."""
        ...


MAPS: dict[str, str] = {
    "fourier": "pipeline.models.linear.feature_maps:FourierFeatures",
    "kernel": "pipeline.models.linear.kernels:KernelFeatures",
    "neighbours": "pipeline.models.linear.feature_maps:NeighbourText",
    "tanh": "pipeline.models.linear.feature_maps:TanhFeatures",
}
"""Kind of feature map, as models store it -> import path of its class, module:class."""


@dataclass(frozen=True)
class FeatureMaps:
    """The feature maps of the image view and of the text view, which are applied before the projection. A view whose
    map is None is projected unchanged."""

    image: FeatureMap | None = None
    text: FeatureMap | None = None

    def settings(self) -> dict[str, Any]:
        """Return the settings of the maps as JSON values, `image` or `text` -> settings. `from_parts` reads them. A
        view without a map has no key."""
        return {side: {"kind": feature_map.kind, **feature_map.settings()} for side, feature_map in self._present()}

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the arrays of both maps by name. `from_parts` reads them. The names are `image.<name>` for the map of
        the image view, and `text.<name>` for the map of the text view."""
        return {
            f"{side}.{name}": value
            for side, feature_map in self._present()
            for name, value in feature_map.tensors().items()
        }

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "FeatureMaps":
        """Restore the maps from the results of `settings` and `tensors`. Other names in `tensors` are ignored, so
        `tensors` may have the tensors of a whole model. Raises ValueError or KeyError for settings of another form."""
        maps = {}
        for side in settings:
            value = read_setting(settings, side, dict)
            prefix = f"{side}."
            own = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
            maps[side] = import_object(MAPS[value["kind"]]).from_parts(value, own)
        return cls(**maps)

    def can_use_gpu(self) -> bool:
        """Return whether a GPU can compute all maps, which is also true if there are no maps."""
        return all(isinstance(feature_map, DeviceMap) for _, feature_map in self._present())

    def _present(self) -> list[tuple[str, FeatureMap]]:
        return [(side, feature_map) for side, feature_map in vars(self).items() if feature_map is not None]


MAX_COLUMNS = 1 << 24
"""Maximum number of columns of a stored sparse matrix, because no vocabulary has more words. `from_sparse_parts` raises
ValueError for more columns."""


def sparse_parts(rows: "csr_array") -> dict[str, np.ndarray]:
    """Return the arrays `data`, `indices` and `indptr` of a sparse matrix by name, to be stored. The caller must store
    the shape of the matrix separately."""
    return {name: getattr(rows, name) for name in ("data", "indices", "indptr")}


def from_sparse_parts(tensors: Mapping[str, np.ndarray], shape: Sequence[int]) -> "csr_array":
    """Restore a sparse matrix of `shape` (n, d) from the result of `sparse_parts`, which may be among other `tensors`.

    Raises ValueError for more than MAX_COLUMNS columns, or if the arrays do not fit the shape.
    """
    if shape[1] > MAX_COLUMNS:
        raise ValueError(
            f"The stored sparse matrix has {shape[1]} columns, but at most {MAX_COLUMNS} are allowed. The file is"
            " damaged. Fit the model again."
        )
    return scipy.sparse.csr_array((tensors["data"], tensors["indices"], tensors["indptr"]), shape=tuple(shape))


def mapped_columns(rows: Rows, feature_map: FeatureMap | None) -> "list[TextVectors]":
    """Apply `feature_map` to the `rows` (n, d) of a view. Return the mapped view as blocks of columns (n, p_k), in
    order: the matrices of `rows`, unless the map replaces them, and then the new columns.

    If `feature_map` is None, the blocks are the matrices of `rows` themselves.
    """
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
    """Compute the product of (view - mean) and `matrix`, (n, c), where `columns` are the blocks (n, p_k) of the view.

    `mean` is (p,) and `matrix` is (p, c), where p is the sum of all p_k. All arguments are arrays, or all are tensors
    on one device. The result is a float32 array, or a tensor of the type of the arguments.
    """
    products = []
    for span, block in spans(Columns(columns)):
        # The mean of a sparse block is subtracted after the product, so that the block stays sparse.
        if is_sparse(block):
            products.append(block @ matrix[span] - mean[span] @ matrix[span])
        else:
            products.append((block - mean[span]) @ matrix[span])
    total = reduce(add, products)
    return total.astype(np.float32, copy=False) if isinstance(total, np.ndarray) else total


PRODUCT_ROWS = 512
"""Number of rows that a thread of a FourierMap maps at a time. The results for this number of rows stay in the cache of
a core."""
SIGMA_NEIGHBOUR = 50
"""The k in the definition of sigma, the mean distance of a row to its k-th nearest neighbour (Gong et al. 2014, section
4.1)."""


@dataclass(frozen=True)
class FourierMap:
    """The random Fourier map phi(z) = sqrt(2) cos(zR + b) of Gong et al. 2014, section 4.1, with fixed random R and b.

    R is `frequencies` (c1, m), and b is `phases` (m,). If `phases` is None, `frequencies` is (c1, m / 2) and is used
    twice: the first m / 2 columns of phi(z) are cosines (b = 0), and the others are sines (b = -pi / 2).
    """

    frequencies: np.ndarray
    phases: np.ndarray | None = None

    @classmethod
    def draw(cls, rule: str, dim: int, features: int, sigma: float, rng: np.random.Generator) -> "FourierMap":
        """Draw R and b at random for a map from c1 = `dim` values to m = `features` values. `sigma` is a typical
        distance between rows z. `rule` is `cosine-sine` or `paper`.

        With the rule `cosine-sine`, the columns are cosines and sines of m / 2 frequencies R ~ Normal(0, 1 / sigma^2)
        (Rahimi and Recht 2007), so m must be even. phi(z) phi(z')' / m then estimates the Gaussian kernel
        exp(-|z - z'|^2 / (2 sigma^2)), and is exact for z = z'. With the rule `paper`, R ~ Normal(0, sigma^2) and
        b ~ Unif[0, 1], as published by Gong et al. 2014. The frequencies then grow with the distance between rows, and
        the phases, in radians, cover about a sixth of the circle.
        """
        if rule == "cosine-sine":
            return cls(rng.standard_normal((dim, features // 2), np.float32) / np.float32(sigma))
        normal = rng.standard_normal((dim, features), np.float32)
        return cls(normal * np.float32(sigma), rng.random(features, np.float32))

    @property
    def dim(self) -> int:
        """The number m of columns of phi(z)."""
        return self.frequencies.shape[1] * (2 if self.phases is None else 1)

    def __call__(self, z: np.ndarray, scale: float = 1.0) -> np.ndarray:
        """Compute `scale` times phi(z), (n, m), from z (n, c1) float32."""
        out = np.empty((len(z), self.dim), np.float32)
        size = self.frequencies.shape[1]

        def compute(start: int) -> None:
            rows = z[start : start + PRODUCT_ROWS]
            piece = out[start : start + PRODUCT_ROWS]
            if self.phases is None:
                angles = rows @ self.frequencies
                np.cos(angles, out=piece[:, :size])
                np.sin(angles, out=piece[:, size:])
            else:
                np.matmul(rows, self.frequencies, out=piece)
                piece += self.phases
                np.cos(piece, out=piece)
            piece *= np.float32(scale * np.sqrt(2))

        if len(z) <= PRODUCT_ROWS:
            compute(0)
        else:  # NumPy computes cosines on one thread, so several blocks are computed at the same time.
            from threadpoolctl import threadpool_limits  # A search maps one row and does not need this import.

            with threadpool_limits(1, "blas"), ThreadPoolExecutor(runtime.threads()) as threads:
                list(threads.map(compute, range(0, len(z), PRODUCT_ROWS)))
        return out


class WeightedMap:
    """The base class of feature maps whose new columns follow the columns of the view, so that `keep` is true. The new
    columns are multiplied by `weight`, which balances their variance against the variance of the view."""

    keep = True
    weight: float

    def weighted(self, weight: float) -> Self:
        """Return a copy of this map with the weight `weight`. The copy shares the arrays of this map, and this map is
        not changed."""
        other = copy(self)
        other.weight = weight
        return other

    def settings(self) -> dict[str, Any]:
        return {"weight": float(self.weight)}


class FourierFeatures(WeightedMap):
    """The map to [x, phi(xA)] (Gong et al. 2014, eq. 5): a row gains the columns `weight` * phi((row - mean) A).

    A is `matrix` (D, c1), the projection of images by the CCA of the auxiliary pairs. Each column of A is multiplied by
    its eigenvalue to the power t (`transfer.auxiliary_power`) and by a constant (`transfer.scale`). `offset` (c1,) is
    the product of the mean of the auxiliary images and A, and `fourier` is phi. For sentences, B and y take the places
    of A and x.
    """

    kind: ClassVar[str] = "fourier"

    def __init__(self, matrix: np.ndarray, offset: np.ndarray, fourier: FourierMap, weight: float = 1.0) -> None:
        self.matrix = matrix
        self.offset = offset
        self.fourier = fourier
        self.weight = weight
        self.dim = fourier.dim

    def __call__(self, rows: Rows) -> np.ndarray:
        return self.fourier(rows @ self.matrix - self.offset, self.weight)

    def on(self, device: "torch.device") -> "Callable[[Tensor | Columns[Tensor]], Tensor]":
        """Return a function that computes this map on `device`, from rows (n, D) to new columns (n, m). The rows must
        be dense or sparse tensors on the device. The arrays of the map are copied to the device once, in this call."""
        import torch

        on_device = {name: upload(array, device) for name, array in self.tensors().items()}

        def mapped(rows: "Tensor | Columns[Tensor]") -> "Tensor":
            z = rows @ on_device["matrix"] - on_device["offset"]
            if "phases" in on_device:
                columns = on_device["phases"].addmm(z, on_device["frequencies"]).cos_()
            else:
                angles = z @ on_device["frequencies"]
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
    """The map to [x, tanh(xA)]: a row gains the columns `weight` * tanh((row - mean) A).

    A is `matrix` (D, c1), as in FourierFeatures, but also multiplied by `transfer.bandwidth`. `offset` (c1,) is the
    product of the mean of the auxiliary rows and A. Gong et al. 2014, section 4.1, report that tanh works less well
    than random Fourier features.
    """

    kind: ClassVar[str] = "tanh"

    def __init__(self, matrix: np.ndarray, offset: np.ndarray, weight: float = 1.0) -> None:
        self.matrix = matrix
        self.offset = offset
        self.weight = weight
        self.dim = matrix.shape[1]

    def __call__(self, rows: Rows) -> np.ndarray:
        return np.float32(self.weight) * np.tanh(rows @ self.matrix - self.offset)

    def tensors(self) -> dict[str, np.ndarray]:
        return {"matrix": self.matrix, "offset": self.offset}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "TanhFeatures":
        return cls(tensors["matrix"], tensors["offset"], read_number(settings, "weight"))


def measure_bandwidth(z: np.ndarray) -> float:
    """Compute sigma: the Euclidean distance of a row of z (n, c1) to its 50th nearest other row, averaged over all
    rows.

    If there are fewer than 51 rows, the distance to the farthest row is used instead. Raises InputError for fewer than
    two rows.
    """
    from sklearn.neighbors import NearestNeighbors  # The import takes a second, and only a fit needs scikit-learn.

    if len(z) < 2:
        raise InputError(
            "The training sae needs at least 2 photos and 2 captions in the split train, but the number of photos or of"
            f" captions is {len(z)}. Add captioned photos to this split."
        )
    neighbour = min(SIGMA_NEIGHBOUR, len(z) - 1)
    distances, _ = NearestNeighbors(n_neighbors=neighbour).fit(z).kneighbors()
    return float(distances[:, -1].mean())


class ReservoirSample:
    """A random sample of `count` rows, drawn from all rows that are added block by block. If there are at most `count`
    rows, the sample has all of them.

    Each row has the same probability, and no row is drawn twice. Only the sample and one block are in memory. The
    sample depends on `rng` and on the order of the rows, but not on their division into blocks.
    """

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.count = count
        self._rng = rng
        self._keys = np.zeros(0)
        self._kept: Rows | None = None

    def add(self, rows: Rows) -> None:
        """Add the rows (n, d) of a block, dense or sparse. Some of these rows may replace rows of the sample."""
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
        """Return the sample of the rows that were added so far, (k, d) for k rows, in the order in which the rows were
        added. At least one block must have been added."""
        assert self._kept is not None
        return self._kept


class NeighbourText(WeightedMap):
    """The map to [x, T^(x)] (the text feature of Gong et al. 2014, section 4.2): a row gains `weight` * T^(x).

    T^(x) is the mean of the text vectors of the k auxiliary images that are nearest to x by exact Euclidean distance in
    the image view. k is `neighbours`, or the number of auxiliary images if there are fewer. To map new images, the
    object holds all n auxiliary images, `gallery` (n, D) float16, and the vectors of their weak text, `texts` (n, d)
    sparse.
    """

    kind: ClassVar[str] = "neighbours"

    def __init__(self, gallery: np.ndarray, texts: "csr_array", neighbours: int, weight: float = 1.0) -> None:
        self.gallery = gallery
        self.texts = texts
        self.weight = weight
        self.neighbours = min(neighbours, len(gallery))
        self.dim = shape_of(texts)[1]

    @classmethod
    def build(cls, blocks: Iterable[ViewBlock], neighbours: int) -> "NeighbourText":
        """Build the map of an image to the mean text vector of its nearest auxiliary images.

        `blocks` yields the auxiliary pairs, in at least one block. If an auxiliary image has several texts, the vectors
        of these texts are summed. `neighbours` is k. The weight of the map is 1.
        """
        galleries = []
        texts = []
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

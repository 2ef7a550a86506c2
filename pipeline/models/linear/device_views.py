"""Images and sentences as tensors on a device, and a linear model's projections of them there."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.sparse import csr_array, issparse
from torch import Tensor
from torch.nn import functional

from pipeline.compute.device import OomBatcher, full_float32, upload
from pipeline.models.linear.feature_maps import project
from pipeline.models.linear.views import Rows, map_matrices, matrices_of

if TYPE_CHECKING:
    from scipy import sparse

    from pipeline.models.linear.views import ImageView

ROWS = 1 << 15
"""Images, or sentences, projected at once at most."""


def stack_on(
    view: "ImageView", features: Mapping[str, np.ndarray], device: torch.device, rows: slice = slice(None)
) -> Tensor:
    """`view.stack(features)` of some `rows`, (n, dim) float32, on `device`, which converts and normalises float16
    features."""
    features = {name: block[rows] for name, block in features.items()}
    if device.type == "cpu":
        return torch.from_numpy(view.stack(features))
    blocks = zip(view.select_blocks(features), view.steps_of_each, strict=True)
    parts = [normalise_tensor(upload(block, device).float(), steps) for block, steps in blocks]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def normalise_tensor(x: Tensor, steps: Sequence[str]) -> Tensor:
    """`pipeline.models.linear.views.normalise` of x (n, d), as a new tensor."""
    for step in steps:
        x = x.abs().sqrt_().copysign_(x) if step == "sqrt" else unit_length(x)
    return x


def unit_length(vectors: Tensor) -> Tensor:
    """Scale the rows of `vectors` (n, d) to unit length. They are divided by a power of two first, which is exact, so
    that the squares of large or small numbers neither overflow nor vanish."""
    exponents = torch.frexp(vectors.detach().abs().amax(dim=1, keepdim=True)).exponent
    return functional.normalize(torch.ldexp(vectors, -exponents), dim=1)


def sparse_on(matrix: "sparse.csr_array", device: torch.device) -> Tensor:
    """`matrix` (n, d) on `device`, for products with dense tensors."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    places, values = upload(np.stack([rows, matrix.indices]), device), upload(matrix.data, device)
    return torch.sparse_coo_tensor(places, values, matrix.shape, is_coalesced=True, check_invariants=False)


def transposed_on(part: Any, device: torch.device) -> Tensor:
    """(d, n): the transpose of `part` (n, d), dense or sparse, on `device`."""
    return sparse_on(csr_array(part.T), device) if issparse(part) else upload(part, device).T


def rows_on(rows: Rows, device: torch.device) -> Any:
    """`rows` (n, d) on `device`: a tensor, or Columns of tensors."""
    return map_matrices(rows, lambda part: sparse_on(part, device) if issparse(part) else upload(part, device))


class Projections:
    """The projections of both views of `model`, a LinearModel, on `device`."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self._view, self._device, self._dim = model.view, device, model.directions.w.shape[1]
        self._image = self._side(model.mean_x, model.directions.w, model.maps.image)
        self._text = self._side(model.mean_y, model.directions.u, model.maps.text)
        self._batcher = OomBatcher(ROWS, "row")

    def _side(self, mean: np.ndarray, matrix: np.ndarray, feature_map: Any) -> Callable[[Any], Tensor]:
        """From rows of a view, by `rows_on`, to their projections (n, c)."""
        mean, matrix = upload(mean, self._device), upload(matrix, self._device)
        mapped = feature_map and feature_map.on(self._device)

        def side(rows: Any) -> Tensor:
            columns = list(matrices_of(rows)) if feature_map is None or feature_map.keep else []
            return project([*columns, mapped(rows)] if mapped else columns, mean, matrix)

        return side

    def images(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, c) float32 from `features`, encoder -> (n, its dim) as stored."""
        count = len(next(iter(features.values())))
        return self._join(lambda rows: self._image(stack_on(self._view, features, self._device, rows)), count)

    def sentences(self, y: Rows) -> np.ndarray:
        """(m, c) float32 from stacked vectors (m, d)."""
        return self._join(lambda rows: self._text(rows_on(y[rows], self._device)), y.shape[0])

    def _join(self, embed: Callable[[slice], Tensor], count: int) -> np.ndarray:
        with full_float32():
            parts = self._batcher.map(lambda rows: embed(rows).cpu().numpy(), count)
        return np.concatenate(parts) if parts else np.empty((0, self._dim), np.float32)

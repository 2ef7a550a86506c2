"""Images and sentences as tensors on a device, and a linear model's projections of them there."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.sparse import csr_array, issparse
from torch import Tensor

from pipeline.device import OomBatcher, full_float32, upload
from pipeline.models.linear.views import Rows, map_parts, parts_of

if TYPE_CHECKING:
    from scipy import sparse

    from pipeline.models.linear.views import ImageView

ROWS = 1 << 15
"""Images, or sentences, projected at once at most."""


def stack_on(view: "ImageView", features: Mapping[str, np.ndarray], device: torch.device) -> Tensor:
    """`view.stack(features)`, (n, dim) float32, on `device`."""
    if device.type == "cpu":
        return torch.from_numpy(view.stack(features))
    return stack_tensors(view, features, device)


def stack_tensors(view: "ImageView", features: Mapping[str, np.ndarray], device: torch.device) -> Tensor:
    """The same; float16 features are converted and normalised on `device`."""
    parts = [normalise_tensor(upload(block, device).float(), view.steps) for block in view.select_blocks(features)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def normalise_tensor(x: Tensor, steps: Sequence[str]) -> Tensor:
    """`pipeline.models.linear.views.normalise` of x (n, d), as a new tensor."""
    for step in steps:
        if step == "sqrt":
            x = x.abs().sqrt_().copysign_(x)
        elif step == "l2":
            length = x.square().sum(dim=1, keepdim=True).sqrt_()
            x = x / torch.where(length > 0, length, 1)
        else:
            raise ValueError(f"unknown step {step}")
    return x


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
    return map_parts(rows, lambda part: sparse_on(part, device) if issparse(part) else upload(part, device))


class DeviceProjection:
    """`feature_maps.project` of one view on `device`, by its `mean` (p,), its `matrix` (p, c) and its `feature_map`,
    which has `on`, or None."""

    def __init__(self, mean: np.ndarray, matrix: np.ndarray, feature_map: Any, device: torch.device) -> None:
        self.mean, self.matrix = upload(mean, device), upload(matrix, device)
        self.keep = feature_map is None or feature_map.keep
        self.map = feature_map.on(device) if feature_map else None

    def __call__(self, rows: Any) -> Tensor:
        """(n, c) of images (n, D), or of sentences (n, d), by `rows_on`."""
        columns = [*(parts_of(rows) if self.keep else ()), *([self.map(rows)] if self.map else ())]
        total, start = self.matrix.new_zeros(rows.shape[0], self.matrix.shape[1]), 0
        for block in columns:
            part = slice(start, start + block.shape[1])
            mean, matrix = self.mean[part], self.matrix[part]
            # A sparse block stays sparse: its mean is subtracted after the product.
            total += block @ matrix - mean @ matrix if block.is_sparse else (block - mean) @ matrix
            start = part.stop
        return total


class Projections:
    """Both views of a linear model on `device`."""

    def __init__(
        self, view: "ImageView", image: DeviceProjection, text: DeviceProjection, device: torch.device
    ) -> None:
        self._view, self._image, self._text, self._device = view, image, text, device
        self._batcher = OomBatcher(ROWS, "row")

    def images(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, c) float32 from `features`, encoder -> (n, its dim) as stored."""

        def project(rows: slice) -> Tensor:
            part = {name: block[rows] for name, block in features.items()}
            return self._image(stack_tensors(self._view, part, self._device))

        return self._join(project, len(next(iter(features.values()))))

    def sentences(self, y: Rows) -> np.ndarray:
        """(m, c) float32 from stacked vectors (m, d)."""
        return self._join(lambda rows: self._text(rows_on(y[rows], self._device)), y.shape[0])

    def _join(self, project: Callable[[slice], Tensor], count: int) -> np.ndarray:
        with full_float32():
            parts = self._batcher.map(lambda rows: project(rows).cpu().numpy(), count)
        return np.concatenate(parts) if parts else np.empty((0, self._image.matrix.shape[1]), np.float32)

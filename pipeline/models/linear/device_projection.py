"""Projections of a linear model's views on a GPU."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from pipeline.device import OomBatcher, full_float32, upload
from pipeline.models.linear.device_views import sparse_on, stack_tensors
from pipeline.models.linear.views import ImageView

ROWS = 1 << 15
"""Images, or sentences, at once at most."""


class DeviceProjection:
    """`feature_maps.project` of the columns of one mapped view on `device`: `mean` (p,), `matrix` (p, c), and the
    `feature_map`, None where there is none, with `on`."""

    def __init__(self, mean: np.ndarray, matrix: np.ndarray, feature_map: Any, device: torch.device) -> None:
        self.mean, self.matrix = upload(mean, device), upload(matrix, device)
        self.keep = feature_map is None or feature_map.keep
        self.map = feature_map.on(device) if feature_map else None

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, c) of images (n, D), or of sparse sentences (n, d)."""
        columns = [rows] if self.map is None else [rows, self.map(rows)] if self.keep else [self.map(rows)]
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

    def __init__(self, view: ImageView, image: DeviceProjection, text: DeviceProjection, device: torch.device) -> None:
        self._view, self._image, self._text, self._device = view, image, text, device
        self._portions = OomBatcher(ROWS, "row")

    def images(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, c) float32 from `features`, encoder -> (n, its dim) as stored."""

        def project(rows: slice) -> np.ndarray:
            part = {name: block[rows] for name, block in features.items()}
            return self._image(stack_tensors(self._view, part, self._device)).cpu().numpy()

        return self._join(project, len(next(iter(features.values()))))

    def sentences(self, y: sparse.csr_array) -> np.ndarray:
        """(m, c) float32 from sparse tf-idf (m, d)."""
        return self._join(lambda rows: self._text(sparse_on(y[rows], self._device)).cpu().numpy(), y.shape[0])

    def _join(self, project: Any, count: int) -> np.ndarray:
        with full_float32():
            parts = self._portions.map(project, count)
        return np.concatenate(parts) if parts else np.empty((0, self._image.matrix.shape[1]), np.float32)

"""Moments of views and of mapped views, with the products on a GPU."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from pipeline.device import OomBatcher, full_float32, upload
from pipeline.models.linear.accumulation import (
    BLOCK_ROWS,
    SHIFT_ROWS,
    MomentsAccumulator,
    owner_matrix,
    scale_rows,
    sum_by_owner,
)
from pipeline.models.linear.device_views import rows_on, sparse_on, stack_tensors
from pipeline.models.linear.feature_maps import FeatureMaps
from pipeline.models.linear.mapped import MappedAccumulator, ViewBlock
from pipeline.models.linear.moments import Moments
from pipeline.models.linear.views import ImageView, Rows, map_parts, parts_of, spans

STRIP = 1024
"""Columns of X'X in one product; the part above the diagonal follows by symmetry and is left out."""
MAPPED_ROWS = 1 << 16
"""Images in a block of mapped views at most; fewer once a GPU has no memory for so many."""
SUMS = {
    torch.float64: ("_sum_x", "_sum_p", "_sum_q"),
    torch.float32: ("_x_pq", "_y_p", "_y_q", "_pp", "_qq", "_pq"),
}
"""The sums of MappedAccumulator, by precision."""


class DeviceAccumulator(MomentsAccumulator):
    """MomentsAccumulator with X'X, Y'X and the squares of dense parts of Y on `device`, with the same shift and
    precision; the other parts of Y'Y are computed on the processor."""

    def __init__(self, view: ImageView, dim_y: int, threads: int, device: torch.device) -> None:
        super().__init__(view.dim, dim_y, threads)
        self._view, self._device, self._batcher = view, device, OomBatcher(BLOCK_ROWS, "image")
        self._type = torch.float64 if self._dtype == np.float64 else torch.float32
        self._on_device: dict[str, Tensor] = {
            "xx": torch.zeros(view.dim, view.dim, dtype=self._type, device=device),
            "yx": torch.zeros(dim_y, view.dim, dtype=self._type, device=device),
            "sum_x": torch.zeros(view.dim, dtype=torch.float64, device=device),
        }
        self._squares: dict[tuple[int, int], Tensor] = {}

    def add(self, features: Mapping[str, np.ndarray], y: Rows, owners: np.ndarray) -> None:
        """Add a block: images as `features`, encoder -> (b, its dim) as stored, and the rest as in
        MomentsAccumulator."""
        n = len(next(iter(features.values())))
        sums, counts = self._sum_sentences(y, owners, n)
        if not counts.all():
            features = {name: block[counts > 0] for name, block in features.items()}
            sums, counts = sums[counts > 0], counts[counts > 0]

        def add_rows(rows: slice) -> None:
            part = {name: block[rows] for name, block in features.items()}
            self._add_images(stack_tensors(self._view, part, self._device), sums[rows], counts[rows])

        with full_float32():
            self._batcher.map(add_rows, len(counts))

    def _add_square(self, pair: tuple[int, int], place: tuple[slice, slice], left: Any, right: Any) -> None:
        if sparse.issparse(left) or sparse.issparse(right):
            super()._add_square(pair, place, left, right)
            return
        with full_float32():
            left = upload(left, self._device)
            square = left.T @ (left if pair[0] == pair[1] else upload(right, self._device))
        self._squares[pair] = self._squares[pair] + square if pair in self._squares else square

    def _add_images(self, x: Tensor, sums: Rows, counts: np.ndarray) -> None:
        """Images (b, D), (b, d) the sum of each one's sentences, and (b,) their number."""
        if self._shift is None:
            self._shift = x[:SHIFT_ROWS].mean(dim=0, dtype=self._type)
        root = np.sqrt(counts, dtype=self._dtype)
        weights = upload(root, self._device)
        z = (x.to(self._type) - self._shift).mul_(weights[:, None])
        # All that allocates comes before the sums change: a block that does not fit is added again in parts.
        scaled = map_parts(sums, lambda part: scale_rows(part, 1 / root))
        yx = [(rows, transposed_on(part, self._device) @ z) for rows, part in spans(scaled)]
        sum_x = weights @ z
        for start in range(0, z.shape[1], STRIP):
            strip = slice(start, start + STRIP)
            self._on_device["xx"][start:, strip].addmm_(z[:, start:].T, z[:, strip])
        for rows, product in yx:
            self._on_device["yx"][rows] += product
        self._on_device["sum_x"] += sum_x

    def result(self) -> Moments:
        """The moments of all blocks; the accumulator must not be used afterwards."""
        if self._shift is not None:
            found = {name: tensor.cpu().numpy() for name, tensor in self._on_device.items()}
            self._shift = self._shift.cpu().numpy()
            self._xx, self._yx, self._sum_x = found["xx"].T, found["yx"], found["sum_x"]
            for (left, right), square in self._squares.items():
                self._yy[self._columns[left][0], self._columns[right][0]] = square.cpu().numpy()
        return super().result()


def transposed_on(part: Any, device: torch.device) -> Tensor:
    """(d, n): the transpose of `part` (n, d), dense or sparse, on `device`."""
    return sparse_on(sparse.csr_array(part.T), device) if sparse.issparse(part) else upload(part, device).T


class DeviceMappedAccumulator(MappedAccumulator):
    """MappedAccumulator with its sums on `device`, for maps that have `on`."""

    def __init__(self, known: Moments, maps: FeatureMaps, device: torch.device) -> None:
        super().__init__(known, maps)
        self._device, self._batcher = device, OomBatcher(MAPPED_ROWS, "image")
        self._image, self._text = (one.on(device) if one else None for one in (maps.image, maps.text))
        self._center = upload(self._center, device)
        self._sums: dict[str, Tensor] = {
            name: torch.zeros(getattr(self, name).shape, dtype=dtype, device=device)
            for dtype, names in SUMS.items()
            for name in names
        }

    def add(self, block: ViewBlock) -> None:
        with full_float32():
            self._batcher.map(lambda rows: self._add(block.images(rows)), len(block.x))

    def _add(self, block: ViewBlock) -> None:
        counts = np.bincount(block.owners, minlength=len(block.x)).astype(np.float32)
        if not counts.any():
            return
        # An image without a sentence has weight zero in all these sums.
        x, weights = upload(block.x, self._device), upload(counts, self._device)
        z, p, q = x - self._center, x.new_empty(len(x), 0), x.new_empty(len(block.owners), 0)
        if self._image:
            p = self._image(x)
        if self._text:
            q = self._text(rows_on(block.y, self._device))
        if self._shift_p is None:
            self._shift_p, self._shift_q = p.mean(dim=0), q.mean(dim=0)
        p, q = p - self._shift_p, q - self._shift_q
        weighted, by_image = weights[:, None] * p, x.new_empty(len(x), 0)
        made = {}
        if self._text:
            by_image = sparse_on(owner_matrix(block.owners, len(x)), self._device) @ q
            made |= {"_sum_q": q.sum(dim=0), "_y_q": self._cross(block.y, q), "_qq": q.T @ q}
        if self._image:
            sums = sum_by_owner(block.y, block.owners, len(x))
            made |= {"_sum_p": weights @ p, "_y_p": self._cross(sums, p), "_pp": p.T @ weighted}
        if self._image and self._text:
            made["_pq"] = p.T @ by_image
        made |= {"_sum_x": weights @ z, "_x_pq": z.T @ torch.hstack([weighted, by_image])}
        self._n += counts.sum()
        for name, product in made.items():
            self._sums[name] += product

    def _cross(self, y: Rows, other: Tensor) -> Tensor:
        """y' other."""
        return torch.cat([transposed_on(part, self._device) @ other for part in parts_of(y)])

    def result(self) -> Moments:
        """As MappedAccumulator's."""
        for name, total in self._sums.items():
            setattr(self, name, total.cpu().numpy())
        if self._shift_p is not None:
            self._shift_p, self._shift_q = self._shift_p.cpu().numpy(), self._shift_q.cpu().numpy()
        return super().result()

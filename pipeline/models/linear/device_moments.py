"""Moments whose products are made on a GPU, beside what the processor reads and counts meanwhile."""

from collections.abc import Mapping

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from pipeline.device import OomBatcher, full_float32, upload
from pipeline.models.linear.accumulation import BLOCK_ROWS, SHIFT_ROWS, MomentsAccumulator
from pipeline.models.linear.device_views import sparse_on, stack_tensors
from pipeline.models.linear.moments import Moments
from pipeline.models.linear.views import ImageView

STRIP = 1024
"""Columns of X'X in one product; what stands above their own rows is known by symmetry, and is left out."""


class DeviceAccumulator(MomentsAccumulator):
    """The sums of MomentsAccumulator, of the same shift and in the same precision: X'X and Y'X are made on `device`,
    where they stay until `result`; Y'Y, which is sparse, by the processor."""

    def __init__(self, view: ImageView, dim_y: int, threads: int, device: torch.device) -> None:
        super().__init__(view.dim, dim_y, threads)
        self._view, self._device = view, device
        self._portions = OomBatcher(BLOCK_ROWS, "image")
        self._type = torch.float64 if self._dtype == np.float64 else torch.float32
        self._on_device: dict[str, Tensor] = {
            "xx": torch.zeros(view.dim, view.dim, dtype=self._type, device=device),
            "yx": torch.zeros(dim_y, view.dim, dtype=self._type, device=device),
            "sum_x": torch.zeros(view.dim, dtype=torch.float64, device=device),
        }

    def add(self, features: Mapping[str, np.ndarray], y: sparse.csr_array, owners: np.ndarray) -> None:
        """Add a block: images as `features`, encoder -> (b, its dim) as stored, and the rest as MomentsAccumulator."""
        n = len(next(iter(features.values())))
        sums, counts = self._sum_sentences(y, owners, n)
        if not counts.all():
            features = {name: block[counts > 0] for name, block in features.items()}
            sums, counts = sums[counts > 0], counts[counts > 0]

        def add_rows(rows: slice) -> None:
            part = {name: block[rows] for name, block in features.items()}
            self._add_images(stack_tensors(self._view, part, self._device), sums[rows], counts[rows])

        with full_float32():
            self._portions.map(add_rows, len(counts))

    def _add_images(self, x: Tensor, sums: sparse.csr_array, counts: np.ndarray) -> None:
        """Images (b, D), (b, d) the sum of each one's sentences, and (b,) how many these are."""
        if self._shift is None:
            self._shift = x[:SHIFT_ROWS].mean(dim=0, dtype=self._type)
        root = np.sqrt(counts, dtype=self._dtype)
        weights = upload(root, self._device)
        z = (x.to(self._type) - self._shift).mul_(weights[:, None])
        # Before the sums change, all that needs memory: a block that does not fit is added again in parts.
        yx = sparse_on(sparse.csr_array(sums.multiply(1 / root[:, None]).T), self._device) @ z
        sum_x = weights @ z
        for start in range(0, z.shape[1], STRIP):
            strip = slice(start, start + STRIP)
            self._on_device["xx"][start:, strip].addmm_(z[:, start:].T, z[:, strip])
        self._on_device["yx"] += yx
        self._on_device["sum_x"] += sum_x

    def result(self) -> Moments:
        """The moments of everything added so far; the accumulator must not be used afterwards."""
        if self._shift is not None:
            found = {name: tensor.cpu().numpy() for name, tensor in self._on_device.items()}
            self._shift = self._shift.cpu().numpy()
            self._xx, self._yx, self._sum_x = found["xx"].T, found["yx"], found["sum_x"]
        return super().result()

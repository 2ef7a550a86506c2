"""The second pass of a feature map on a GPU: the map and its products."""

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from pipeline.device import OomBatcher, full_float32, upload
from pipeline.models.linear.accumulation import adding, sum_by_owner
from pipeline.models.linear.device_views import sparse_on
from pipeline.models.linear.feature_maps import FeatureMaps
from pipeline.models.linear.mapped import MappedAccumulator, ViewBlock
from pipeline.models.linear.moments import Moments

ROWS = 1 << 16
"""Images in a block at most; fewer once a GPU has no memory for so many."""

SUMS = {
    torch.float64: ("_sum_x", "_sum_p", "_sum_q"),
    torch.float32: ("_x_pq", "_y_p", "_y_q", "_pp", "_qq", "_pq"),
}
"""What MappedAccumulator sums, and in which precision."""


class DeviceMappedAccumulator(MappedAccumulator):
    """The sums of MappedAccumulator, which stay on `device` until `result`. Its maps must fit devices."""

    def __init__(self, known: Moments, maps: FeatureMaps, device: torch.device) -> None:
        super().__init__(known, maps)
        self._device, self._portions = device, OomBatcher(ROWS, "image")
        self._image, self._text = (one.on(device) if one else None for one in (maps.image, maps.text))
        self._center = upload(self._center, device)
        self._sums: dict[str, Tensor] = {
            name: torch.zeros(getattr(self, name).shape, dtype=dtype, device=device)
            for dtype, names in SUMS.items()
            for name in names
        }

    def add(self, block: ViewBlock) -> None:
        with full_float32():
            self._portions.map(lambda rows: self._add(_cut(block, rows)), len(block.x))

    def _add(self, block: ViewBlock) -> None:
        counts = np.bincount(block.owners, minlength=len(block.x)).astype(np.float32)
        if not counts.any():
            return
        # An image without a sentence weighs nothing in any of these sums.
        x, weights = upload(block.x, self._device), upload(counts, self._device)
        z, p, q = x - self._center, x.new_empty(len(x), 0), x.new_empty(len(block.owners), 0)
        if self._image:
            p = self._image(x)
        if self._text:
            q = self._text(sparse_on(block.y, self._device))
        if self._shift_p is None:
            self._shift_p, self._shift_q = p.mean(dim=0), q.mean(dim=0)
        p, q = p - self._shift_p, q - self._shift_q
        weighted, by_image = weights[:, None] * p, x.new_empty(len(x), 0)
        made = {}
        if self._text:
            by_image = sparse_on(adding(block.owners, len(x)), self._device) @ q
            made |= {"_sum_q": q.sum(dim=0), "_y_q": self._turned(block.y) @ q, "_qq": q.T @ q}
        if self._image:
            sums = sum_by_owner(block.y, block.owners, len(x))
            made |= {"_sum_p": weights @ p, "_y_p": self._turned(sums) @ p, "_pp": p.T @ weighted}
        if self._image and self._text:
            made["_pq"] = p.T @ by_image
        made |= {"_sum_x": weights @ z, "_x_pq": z.T @ torch.hstack([weighted, by_image])}
        self._n += counts.sum()
        for name, product in made.items():
            self._sums[name] += product

    def _turned(self, y: sparse.csr_array) -> Tensor:
        return sparse_on(sparse.csr_array(y.T), self._device)

    def result(self) -> Moments:
        """As MappedAccumulator's."""
        for name, total in self._sums.items():
            setattr(self, name, total.cpu().numpy())
        if self._shift_p is not None:
            self._shift_p, self._shift_q = self._shift_p.cpu().numpy(), self._shift_q.cpu().numpy()
        return super().result()


def _cut(block: ViewBlock, rows: slice) -> ViewBlock:
    """The images `rows` of a block, with their sentences."""
    if rows == slice(0, len(block.x)):
        return block
    own = (block.owners >= rows.start) & (block.owners < rows.stop)
    return ViewBlock(block.x[rows], block.y[own], block.owners[own] - rows.start)

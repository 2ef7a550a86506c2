"""Moments in torch: of views on a GPU, and of mapped views, which take a second pass over the data, on any device."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from pipeline.device import OomBatcher, full_float32, upload
from pipeline.models.linear.accumulation import BLOCK_ROWS, SHIFT_ROWS, MomentsAccumulator, scale_rows
from pipeline.models.linear.device_views import rows_on, sparse_on, stack_tensors, transposed_on
from pipeline.models.linear.feature_maps import FeatureMap, FeatureMaps
from pipeline.models.linear.moments import Moments, mirror
from pipeline.models.linear.views import (
    ImageView,
    Rows,
    ViewBlock,
    map_parts,
    owner_matrix,
    parts_of,
    spans,
    sum_by_owner,
)

STRIP = 1024
"""Columns of X'X in one product; the part above the diagonal follows by symmetry and is left out."""
MAPPED_ROWS = 1 << 16
"""Images in a block of mapped views at most; fewer once a GPU has no memory for so many."""
OUTER_ROWS = 256
"""Rows of an outer product subtracted at once: they fit in the cache."""


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
        add_lower(self._on_device["xx"], z, z)
        for rows, product in yx:
            self._on_device["yx"][rows] += product
        self._on_device["sum_x"] += sum_x

    def result(self) -> Moments:
        """The moments of all blocks; the accumulator must not be used afterwards."""
        if self._shift is not None:
            sums = {name: tensor.cpu().numpy() for name, tensor in self._on_device.items()}
            self._shift = self._shift.cpu().numpy()
            self._xx, self._yx, self._sum_x = sums["xx"].T, sums["yx"], sums["sum_x"]
            for (left, right), square in self._squares.items():
                self._yy[self._columns[left][0], self._columns[right][0]] = square.cpu().numpy()
        return super().result()


def add_lower(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left' right, which is symmetric, to the lower triangle of `total`, in place, by strips of columns."""
    for start in range(0, len(total), STRIP):
        strip = slice(start, start + STRIP)
        total[start:, strip].addmm_(left[:, start:].T, right[:, strip])


class MappedAccumulator:
    """Sums over blocks the products of mapped images P (b, p) and mapped sentences Q (m, q) with each other and with
    all else, on `device`. A map without `on` makes its rows on the processor."""

    def __init__(self, known: Moments, maps: FeatureMaps, device: torch.device) -> None:
        p, q = (feature_map.dim if feature_map else 0 for feature_map in (maps.image, maps.text))
        dim_x, dim_y = len(known.mean_x), len(known.mean_y)
        self._known, self._maps, self._device = known, maps, device
        self._batcher = OomBatcher(MAPPED_ROWS, "image")
        self._image, self._text = (self._placed(feature_map) for feature_map in (maps.image, maps.text))
        self._center = upload(known.mean_x.astype(np.float32), device)
        self._shifts: tuple[Tensor, Tensor] | None = None
        self._n = 0.0
        sums = {"x": (dim_x,), "p": (p,), "q": (q,)}
        products = {
            "x_pq": (dim_x, p + q),
            "y_p": (dim_y, p),
            "y_q": (dim_y, q),
            "pp": (p, p),
            "qq": (q, q),
            "pq": (p, q),
        }
        self._sums = {name: torch.zeros(shape, dtype=torch.float64, device=device) for name, shape in sums.items()}
        self._sums |= {name: torch.zeros(shape, device=device) for name, shape in products.items()}

    def _placed(self, feature_map: FeatureMap | None) -> Callable[[Rows], Tensor] | None:
        """The map from rows to a tensor on the device. On the processor numpy's own is as fast."""
        if feature_map is None:
            return None
        if self._device.type == "cpu" or not hasattr(feature_map, "on"):
            return lambda rows: upload(feature_map(rows), self._device)
        mapped = feature_map.on(self._device)
        return lambda rows: mapped(rows_on(rows, self._device))

    def add(self, block: ViewBlock) -> None:
        """Add the pairs of a block; images without a sentence add nothing."""
        with full_float32():
            self._batcher.map(lambda rows: self._add(block.images(rows)), len(block.x))

    def _add(self, block: ViewBlock) -> None:
        counts = np.bincount(block.owners, minlength=len(block.x)).astype(np.float32)
        if not counts.any():
            return
        # An image without a sentence has weight zero in all these sums.
        x, weights = upload(block.x, self._device), upload(counts, self._device)
        z = x - self._center
        p = self._image(block.x) if self._image else x.new_empty(len(x), 0)
        q = self._text(block.y) if self._text else x.new_empty(len(block.owners), 0)
        if self._shifts is None:
            # As in the first pass, centred about the first block's mean: sums about zero lose small variances.
            self._shifts = p.mean(dim=0), q.mean(dim=0)
        p, q = p - self._shifts[0], q - self._shifts[1]
        weighted, by_image = weights[:, None] * p, x.new_empty(len(x), 0)
        # All that allocates comes before the sums change: a block that does not fit is added again in parts.
        products = {}
        if self._text:
            by_image = sparse_on(owner_matrix(block.owners, len(x)), self._device) @ q
            products |= {"q": q.sum(dim=0), "y_q": self._cross(block.y, q)}
        if self._image:
            sums = sum_by_owner(block.y, block.owners, len(x))
            products |= {"p": weights @ p, "y_p": self._cross(sums, p)}
        both = torch.hstack([weighted, by_image])
        products["x"] = weights @ z
        self._n += counts.sum()
        for name, product in products.items():
            self._sums[name] += product
        self._sums["x_pq"].addmm_(z.T, both)
        self._sums["pq"].addmm_(p.T, by_image)
        add_lower(self._sums["pp"], p, weighted)
        add_lower(self._sums["qq"], q, q)

    def _cross(self, y: Rows, other: Tensor) -> Tensor:
        """y' other."""
        return torch.cat([transposed_on(part, self._device) @ other for part in parts_of(y)])

    def result(self) -> Moments:
        """The moments of all pairs of `known`; the accumulator must not be used afterwards. ValueError if it has not
        seen them all."""
        known, n = self._known, self._known.n
        if not np.isclose(self._n, n):
            raise ValueError(f"the second pass saw {self._n:g} pairs, the first {n:g}")
        root = np.sqrt(n)
        sums = {name: total.cpu().numpy() for name, total in self._sums.items()}
        x, p, q = (sums[name] / root for name in ("x", "p", "q"))
        xp, xq = np.split(_subtract_outer(sums["x_pq"], x, np.concatenate([p, q])), [len(p)], axis=1)
        yp, yq = (_subtract_outer(sums[f"y_{of}"], root * known.mean_y, mean) for of, mean in (("p", p), ("q", q)))
        pp, qq = (_subtract_outer(mirror(sums[name].T), mean, mean) for name, mean in (("pp", p), ("qq", q)))
        pq = _subtract_outer(sums["pq"], p, q)
        keep_x, keep_y = (
            feature_map is None or feature_map.keep for feature_map in (self._maps.image, self._maps.text)
        )
        shift_p, shift_q = (shift.cpu().numpy() for shift in self._shifts)
        mean_p, mean_q = shift_p + p / root, shift_q + q / root
        return Moments(
            n,
            np.concatenate([known.mean_x, mean_p]) if keep_x else mean_p,
            np.concatenate([known.mean_y, mean_q]) if keep_y else mean_q,
            np.block([[known.xx, xp], [xp.T, pp]]) if keep_x else pp,
            np.block([row[not keep_y :] for row in [[known.xy, xq], [yp.T, pq]][not keep_x :]]),
            np.block([[known.yy, yq], [yq.T, qq]]) if keep_y else qq,
        )


def _subtract_outer(total: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """total - left right', in place."""
    for start in range(0, len(left), OUTER_ROWS):
        rows = slice(start, start + OUTER_ROWS)
        total[rows] -= np.outer(left[rows].astype(np.float32), right.astype(np.float32))
    return total

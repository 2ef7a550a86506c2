"""The region view: the features of an image's regions, and each region's position in the image."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pipeline.models.linear.views import ImageView

WHOLE = np.sqrt(np.array([0, 0, 1, 1, 1, 1, 1], np.float32) / 5)
"""The geometry of a whole image."""


class RegionBlock(Protocol):
    """Regions of n images, image after image: `features` (total, dim), of several encoders side by side, `boxes`
    (total, 4) x1, y1, x2, y2 in original pixels, `scores` (total,), and `offsets` (n + 1,)."""

    features: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray


def locate(boxes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """(total, 7) float32 of unit length, from `boxes` (total, 4) in pixels: the roots of x1 / w, y1 / h, x2 / w, y2 /
    h, of the shares of w and h that width and height are, and of the root of the area's share.

    The regions of image i are offsets[i] to offsets[i + 1], of which the first is the whole image, w by h pixels.
    """
    wholes = np.repeat(offsets[:-1], np.diff(offsets))
    corners = boxes.reshape(-1, 2, 2)
    low, high = corners[wholes].swapaxes(0, 1)
    shares = (corners - low[:, None]) / (high - low)[:, None]
    sides = shares[:, 1] - shares[:, 0]
    numbers = np.sqrt(np.hstack([shares.reshape(-1, 4), sides, np.sqrt(sides.prod(axis=1, keepdims=True))]))
    return (numbers / np.linalg.norm(numbers, axis=1, keepdims=True)).astype(np.float32)


@dataclass(frozen=True)
class RegionView:
    """The `features` of regions as an image view makes them and, with `geometry`, the seven values of `locate`."""

    features: ImageView
    geometry: bool

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "RegionView":
        """The inverse of `settings`; ignores other keys."""
        return cls(ImageView.from_dict(value), value.get("geometry", False))

    def settings(self) -> dict[str, Any]:
        return {**vars(self.features), "geometry": self.geometry}

    @property
    def encoders(self) -> tuple[str, ...]:
        return self.features.encoders

    @property
    def dim(self) -> int:
        return self.features.dim + self.geometry * len(WHOLE)

    def stack(
        self, block: RegionBlock, rows: np.ndarray | slice = slice(None), through: ImageView | None = None
    ) -> np.ndarray:
        """(n, dim) float32 of the regions `rows` of a block. `through` replaces `features` by a view of some of the
        encoders, with its own order and steps. Raises IntegrityError as `ImageView.stack` does."""
        x = (through or self.features).stack(self.features.split(block.features[rows]))
        return np.hstack([x, locate(block.boxes, block.offsets)[rows]]) if self.geometry else x

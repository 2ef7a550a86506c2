"""Boxes of an image warped to squares of pixels, as in R-CNN (Girshick et al. 2014, appendix A)."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from pipeline.images.preprocess import Preprocessing, prepare


@dataclass(frozen=True)
class Crops:
    """Warps every region to a square of `side` pixels, with a border of `context` pixels from around its box.

    Context outside the image is filled with `mean` (3 numbers in [0, 1]).
    """

    side: int
    context: int
    mean: tuple[float, float, float]

    def render(self, image: Image.Image, boxes: np.ndarray) -> np.ndarray:
        """(n, side, side, 3) uint8 of an RGB image's boxes (n, 4); row 0, the whole image, gets no context."""
        whole = prepare(image, Preprocessing(self.side, None, self.mean, self.mean))
        return np.stack([whole, *(self.warp(image, box) for box in boxes[1:])])

    def warp(self, image: Image.Image, box: np.ndarray) -> np.ndarray:
        """(side, side, 3) uint8 of one box and its context."""
        low, high = box[:2].astype(float), box[2:].astype(float)
        margin = (high - low) * self.context / (self.side - 2 * self.context)
        low, high = low - margin, high + margin
        inside = np.clip(low, 0, image.size), np.clip(high, 0, image.size)
        # Where the part inside the image falls in the square; at least one pixel.
        scale = self.side / (high - low)
        start = np.clip(np.rint((inside[0] - low) * scale), 0, self.side - 1).astype(int)
        stop = np.clip(np.rint((inside[1] - low) * scale), start + 1, self.side).astype(int)
        part = image.resize(tuple(stop - start), Image.Resampling.BILINEAR, (*inside[0], *inside[1]))
        if (stop - start == self.side).all():
            return np.asarray(part)
        square = np.empty((self.side, self.side, 3), np.uint8)
        square[:] = np.rint(np.multiply(self.mean, 255))
        square[start[1] : stop[1], start[0] : stop[0]] = part
        return square


@dataclass(frozen=True)
class WholeImages:
    """Resizes whole images: the shorter side to `side` pixels, the longer in proportion, rounded to a multiple of
    `step` (to limit the number of sizes) and at most `aspect` times the shorter."""

    side: int
    step: int
    aspect: float

    def size(self, size: tuple[int, int]) -> tuple[int, int]:
        """The new (width, height) of an image of `size`."""
        width, height = size
        ratio = min(max(size) / min(size), self.aspect)
        longer = max(self.side, round(self.side * ratio / self.step) * self.step)
        return (longer, self.side) if width >= height else (self.side, longer)

    def render(self, image: Image.Image, boxes: np.ndarray) -> np.ndarray:
        """(height, width, 3) uint8 of an RGB image, whatever its boxes."""
        return np.asarray(image.resize(self.size(image.size), Image.Resampling.BILINEAR))

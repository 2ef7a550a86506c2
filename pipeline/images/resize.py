"""Antialiased resizing of 8-bit images by PyTorch, which takes about a quarter of the time that Pillow takes.

Importing this module imports torch.
"""

import math
import warnings
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

KERNELS = {
    "bilinear": (torch.ops.aten._upsample_bilinear2d_aa.default, 1),
    "bicubic": (torch.ops.aten._upsample_bicubic2d_aa.default, 2),
}
"""The function of torch for each interpolation, and the reach of its kernel on each side in pixels of the result."""
MIN_STARTS = 8
"""Smallest number of candidates for the position at which resizing starts. The candidates are the edge of the box, and
positions before this edge at distances of one pixel of the result. There are fewer candidates near the edge of the
image. torch can only start at a whole pixel of the image, so the candidate that is nearest to a whole pixel is chosen.
"""


def resize(
    image: Image.Image | np.ndarray,
    size: tuple[int, int],
    interpolation: str = "bilinear",
    box: tuple[float, float, float, float] | None = None,
) -> np.ndarray:
    """Resize an RGB image, or its part in `box` (left, upper, right, lower), to `size` (width, height).

    `image` is a Pillow image or (h, w, 3) uint8. Returns (height, width, 3) uint8. With "bilinear" and "bicubic", the
    pixels are the pixels that Pillow computes, except for rounding. With a box, the first rows and columns may also
    differ, and the result may be shifted by a fraction of a pixel of the image. Pillow computes all other
    interpolations.
    """
    if interpolation not in KERNELS:
        image = image if isinstance(image, Image.Image) else Image.fromarray(image)
        return np.asarray(image.resize(size, Image.Resampling[interpolation.upper()], box))
    function, reach = KERNELS[interpolation]
    width, height = image.size if isinstance(image, Image.Image) else (image.shape[1], image.shape[0])
    left, upper, right, lower = box or (0, 0, width, height)
    x = Axis.choose(left, right, width, size[0], reach)
    y = Axis.choose(upper, lower, height, size[1], reach)
    if isinstance(image, Image.Image):
        pixels = np.asarray(image if box is None else image.crop((x.start, y.start, x.stop, y.stop)))
    else:
        pixels = image[y.start : y.stop, x.start : x.stop]
    _silence_warning()
    planes = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    resized = function(planes, [y.computed, x.computed], False, 1 / y.scale, 1 / x.scale)[0].permute(1, 2, 0)
    return np.ascontiguousarray(resized[y.skipped :, x.skipped :][: size[1], : size[0]].numpy())


class Axis(NamedTuple):
    """The resizing of one axis of an image.

    The pixels `start` to `stop` - 1 of the image are resized to `computed` pixels. torch can only begin at a whole
    pixel of the image, so resizing begins before the part that is wanted. The first `skipped` computed pixels, and the
    computed pixels after the wanted part, are dropped. `scale` is the number of pixels of the image per pixel of the
    result.
    """

    start: int
    stop: int
    scale: float
    skipped: int
    computed: int

    @classmethod
    def choose(cls, low: float, high: float, length: int, size: int, reach: int) -> "Axis":
        """Return the resizing of the part from `low` to `high` of an axis of `length` pixels to `size` pixels.

        `reach` is the reach of the kernel in pixels of the result.
        """
        scale = (high - low) / size
        exact = low - scale * np.arange(MIN_STARTS + min(math.ceil(2 / scale), size) if low else 1)
        exact = exact[np.rint(exact) >= 0]
        skipped = int(np.abs(exact - np.rint(exact)).argmin())
        start = round(float(exact[skipped]))
        stop = min(length, math.ceil(high + reach * max(scale, 1)))
        # torch ignores the scale of an axis that keeps its number of pixels, so one more pixel is computed.
        computed = skipped + size + (scale != 1 and stop - start == skipped + size)
        return cls(start, stop, scale, skipped, computed)


@cache
def _silence_warning() -> None:
    """Trigger torch's warning about read-only arrays, such as the pixels of Pillow, while warnings are ignored.

    torch gives this warning once per process, so it is not shown later.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(np.frombuffer(b"0", np.uint8))

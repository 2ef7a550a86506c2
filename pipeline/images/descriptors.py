"""The visual descriptors of the time before networks: of a whole picture, and of every point of a dense grid.

Pixels are (side, side, 3) uint8 RGB throughout. The five kinds are those of Gong et al. 2014, Table 1. Each is of the
form that OpenCV gives it: the Gabor filters of GIST stand on an image pyramid, not in the Fourier domain, and the
colour SIFTs are grey SIFTs of three channels one after the other, each of unit length.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np
from threadpoolctl import ThreadpoolController

GIST_SIDE, GIST_CELLS = 128, 4
GIST_DIRECTIONS = (8, 8, 4)
"""Of the Gabor filters on each octave: 20 filters, 4 x 4 cells and 3 channels are the usual 960 dimensions."""
CONTRAST_SIGMA, CONTRAST_FLOOR = 6.5, 0.2
"""Of the local contrast normalisation before GIST, in pixels and in logarithms of the 8-bit values."""
COLOUR_LEVELS = 8
HOG_ORIENTATIONS = 9


@dataclass(frozen=True)
class PatchGrid:
    """Squares of `patch` pixels, an even number, whose corners are `step` pixels apart."""

    step: int
    patch: int


def gist(pixels: np.ndarray) -> np.ndarray:
    """(960,) float32: the mean magnitude of Gabor responses in 4 x 4 cells of each channel (Oliva and Torralba)."""
    image = cv2.resize(pixels, (GIST_SIDE, GIST_SIDE), interpolation=cv2.INTER_AREA).astype(np.float64)
    image = _normalise_contrast(image)
    cells = []
    for directions in GIST_DIRECTIONS:
        for even, odd in _gabor_filters(directions):
            energy = cv2.magnitude(*(cv2.filter2D(image, cv2.CV_64F, kernel) for kernel in (even, odd)))
            cells.append(cv2.resize(energy, (GIST_CELLS, GIST_CELLS), interpolation=cv2.INTER_AREA))
        image = cv2.pyrDown(image)
    return np.concatenate(cells, axis=None).astype(np.float32)  # OpenCV's last bits differ from process to process


def rgb_histogram(pixels: np.ndarray) -> np.ndarray:
    """(512,) float32 of unit length: square roots of the shares of 8 x 8 x 8 colours."""
    counts = cv2.calcHist([pixels], [0, 1, 2], None, [COLOUR_LEVELS] * 3, [0, 256] * 3)
    return np.sqrt(counts.ravel() / (pixels.size // 3))


def rgb_sift(pixels: np.ndarray, grid: PatchGrid) -> np.ndarray:
    """(n_points, 384) float32: SIFT of red, green and blue."""
    return _sift(pixels, grid)


def colour_sift(pixels: np.ndarray, grid: PatchGrid) -> np.ndarray:
    """(n_points, 384) float32: SIFT of the intensity and of the opponent colours over it, (R - G) / (R + G + B) and
    (R + G - 2 B) / (R + G + B), each spread over 8 bits (van de Sande et al., C-SIFT)."""
    red, green, blue = (pixels[..., channel].astype(np.float32) for channel in range(3))
    total = red + green + blue
    shade = np.maximum(total, 1)
    channels = (total / 3, ((red - green) / shade + 1) * 127.5, ((red + green - 2 * blue) / shade + 2) * 85)
    return _sift(np.stack(channels, axis=-1).astype(np.uint8), grid)


def hog(pixels: np.ndarray, grid: PatchGrid) -> np.ndarray:
    """(n_points, 36) float32: blocks of 2 x 2 cells, 9 orientations, of the channel with the strongest gradient."""
    block, cell = (grid.patch,) * 2, (grid.patch // 2,) * 2
    descriptor = cv2.HOGDescriptor(block, block, cell, cell, HOG_ORIENTATIONS)
    return descriptor.compute(pixels, (grid.step,) * 2).reshape(-1, 4 * HOG_ORIENTATIONS)


GLOBAL = {"gist": gist, "rgb": rgb_histogram}
LOCAL = {"csift": colour_sift, "rgbsift": rgb_sift, "hog": hog}


def one_thread() -> AbstractContextManager:
    """OpenCV and products of matrices within use one thread: the same sums everywhere, and images are shared out among
    processes instead."""
    cv2.setNumThreads(1)
    return _thread_pools().limit(limits=1)


@cache
def _thread_pools() -> ThreadpoolController:
    return ThreadpoolController()


def _sift(channels: np.ndarray, grid: PatchGrid) -> np.ndarray:
    points = _points(channels.shape[0], grid)
    sift = cv2.SIFT_create()
    return np.hstack([sift.compute(np.ascontiguousarray(channels[..., c]), points)[1] for c in range(3)])


@cache
def _points(side: int, grid: PatchGrid) -> list[cv2.KeyPoint]:
    """Upright keypoints in the middle of the grid's squares. SIFT's 4 x 4 bins are 3/2 of a keypoint's size wide."""
    centres = [corner + grid.patch / 2 for corner in range(0, side - grid.patch + 1, grid.step)]
    return [cv2.KeyPoint(x, y, grid.patch / 6, 0.0) for y in centres for x in centres]


def _normalise_contrast(image: np.ndarray) -> np.ndarray:
    """Local means of the logarithms subtracted, then divided by their local deviation over all channels."""
    image = np.log1p(image)
    image -= cv2.GaussianBlur(image, (0, 0), CONTRAST_SIGMA)
    variance = cv2.GaussianBlur((image**2).mean(axis=2), (0, 0), CONTRAST_SIGMA)
    return image / (CONTRAST_FLOOR + np.sqrt(np.maximum(variance, 0))[..., None])


@cache
def _gabor_filters(directions: int) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    return tuple(_gabor_pairs(directions))


def _gabor_pairs(directions: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The even and the odd filter of each direction, of sum 0 and of wavelength 5 pixels."""
    for number in range(directions):
        pair = []
        for phase in (0, math.pi / 2):
            angle = math.pi * number / directions
            kernel = cv2.getGaborKernel((11, 11), 2.5, angle, 5, 1, phase, cv2.CV_64F)
            kernel -= kernel.mean()
            pair.append(kernel / np.abs(kernel).sum())
        yield tuple(pair)

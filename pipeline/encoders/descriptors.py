"""The five visual descriptors of Gong et al. 2014, Table 1: of a whole picture, or of every point of a dense grid,
these pooled to one vector by codebooks and VLAD.

Pixels are (side, side, 3) uint8 RGB throughout. The computation is OpenCV's: the Gabor filters of GIST work on an image
pyramid, not in the Fourier domain, and a colour SIFT concatenates the unit-length grey SIFTs of three channels.
"""

import math
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import cv2
import numpy as np
from threadpoolctl import ThreadpoolController

GIST_SIDE, GIST_CELLS = 128, 4
GIST_DIRECTIONS = (8, 8, 4)
"""Gabor directions per octave: 20 filters, 4 x 4 cells and 3 channels give the usual 960 dimensions."""
CONTRAST_SIGMA, CONTRAST_FLOOR = 6.5, 0.2
"""Of the local contrast normalisation before GIST: in pixels, and in log 8-bit values."""
COLOUR_LEVELS = 8
HOG_ORIENTATIONS = 9


@dataclass(frozen=True)
class PatchGrid:
    """Squares with sides of `patch` (even) pixels, whose corners are `step` pixels apart."""

    step: int
    patch: int


def gist(pixels: np.ndarray) -> np.ndarray:
    """(960,) float32: the mean magnitude of Gabor responses in 4 x 4 cells of each channel (Oliva and Torralba)."""
    image = cv2.resize(pixels, (GIST_SIDE, GIST_SIDE), interpolation=cv2.INTER_AREA).astype(np.float64)
    image = np.log1p(image)
    image -= cv2.GaussianBlur(image, (0, 0), CONTRAST_SIGMA)
    variance = cv2.GaussianBlur((image**2).mean(axis=2), (0, 0), CONTRAST_SIGMA)  # over all channels
    image /= CONTRAST_FLOOR + np.sqrt(np.maximum(variance, 0))[..., None]
    cells = []
    for directions in GIST_DIRECTIONS:
        for pair in _gabor_filters(directions):
            energy = cv2.magnitude(*(cv2.filter2D(image, cv2.CV_64F, kernel) for kernel in pair))
            cells.append(cv2.resize(energy, (GIST_CELLS, GIST_CELLS), interpolation=cv2.INTER_AREA))
        image = cv2.pyrDown(image)
    return np.concatenate(cells, axis=None).astype(
        np.float32
    )  # float32 hides OpenCV's rounding differences between processes


def rgb_histogram(pixels: np.ndarray) -> np.ndarray:
    """(512,) float32 of unit length: square roots of the frequencies of 8 x 8 x 8 colours."""
    counts = cv2.calcHist([pixels], [0, 1, 2], None, [COLOUR_LEVELS] * 3, [0, 256] * 3)
    return np.sqrt(counts.ravel() / (pixels.size // 3))


def rgb_sift(pixels: np.ndarray, grid: PatchGrid) -> np.ndarray:
    """(n_points, 384) float32: SIFT of red, green and blue."""
    return _sift(pixels, grid)


def colour_sift(pixels: np.ndarray, grid: PatchGrid) -> np.ndarray:
    """(n_points, 384) float32: SIFT of the intensity and of (R - G) / (R + G + B) and (R + G - 2 B) / (R + G + B), each
    scaled to 8 bits (C-SIFT, van de Sande et al.)."""
    red, green, blue = (pixels[..., channel].astype(np.float32) for channel in range(3))
    total = red + green + blue
    shade = np.maximum(total, 1)
    channels = (total / 3, ((red - green) / shade + 1) * 127.5, ((red + green - 2 * blue) / shade + 2) * 85)
    return _sift(np.stack(channels, axis=-1).astype(np.uint8), grid)


def hog(pixels: np.ndarray, grid: PatchGrid) -> np.ndarray:
    """(n_points, 36) float32: blocks of 2 x 2 cells, 9 orientations, from the channel with the strongest gradient."""
    block, cell = (grid.patch,) * 2, (grid.patch // 2,) * 2
    descriptor = cv2.HOGDescriptor(block, block, cell, cell, HOG_ORIENTATIONS)
    return np.asarray(descriptor.compute(pixels, (grid.step,) * 2)).reshape(-1, 4 * HOG_ORIENTATIONS)


GLOBAL = {"gist": gist, "rgb": rgb_histogram}
LOCAL = {"csift": colour_sift, "rgbsift": rgb_sift, "hog": hog}


def one_thread() -> AbstractContextManager:
    """A context in which OpenCV and matrix products use one thread: sums are reproducible, and images are processed in
    parallel instead."""
    cv2.setNumThreads(1)
    return _thread_pools().limit(limits=1)


_thread_pools = cache(ThreadpoolController)


def _sift(channels: np.ndarray, grid: PatchGrid) -> np.ndarray:
    points = _points(channels.shape[0], grid)
    sift = cv2.SIFT.create()
    return np.hstack([sift.compute(np.ascontiguousarray(channels[..., c]), points)[1] for c in range(3)])


@cache
def _points(side: int, grid: PatchGrid) -> list[cv2.KeyPoint]:
    """Upright keypoints in the centres of the squares. A SIFT bin (of 4 x 4) is 3/2 of the keypoint size wide."""
    centres = [corner + grid.patch / 2 for corner in range(0, side - grid.patch + 1, grid.step)]
    return [cv2.KeyPoint(x, y, grid.patch / 6, 0.0) for y in centres for x in centres]


@cache
def _gabor_filters(directions: int) -> list[list[np.ndarray]]:
    """The even and the odd filter of each direction, with sum 0 and wavelength 5 pixels."""
    filters = []
    for number in range(directions):
        angle = math.pi * number / directions
        pair = [cv2.getGaborKernel((11, 11), 2.5, angle, 5, 1, phase, cv2.CV_64F) for phase in (0, math.pi / 2)]
        pair = [kernel - kernel.mean() for kernel in pair]
        filters.append([kernel / np.abs(kernel).sum() for kernel in pair])
    return filters


class Codebook(NamedTuple):
    """Descriptors x (n, raw_dim) are reduced to (x - mean) @ directions.T (n, dim); `words` is (n_words, dim)."""

    mean: np.ndarray
    directions: np.ndarray
    words: np.ndarray

    def pool(self, descriptors: np.ndarray) -> np.ndarray:
        """The VLAD (n_words * dim,) of descriptors (n, raw_dim)."""
        return vlad((descriptors - self.mean) @ self.directions.T, self.words)


def vlad(descriptors: np.ndarray, words: np.ndarray) -> np.ndarray:
    """(n_words * dim,) float32 of unit length (or zero): for each word, the sum of its residuals.

    descriptors (n, dim), words (n_words, dim). Jégou et al. ([26] in Gong et al. 2014), with the signed square root of
    their later version.
    """
    nearest = (descriptors @ words.T - (words**2).sum(axis=1) / 2).argmax(axis=1)
    chosen = np.zeros((len(words), len(descriptors)), np.float32)
    chosen[nearest, np.arange(len(descriptors))] = 1
    residuals = (chosen @ descriptors - chosen.sum(axis=1, keepdims=True) * words).ravel()
    pooled = np.sign(residuals) * np.sqrt(np.abs(residuals))
    return (pooled / (np.linalg.norm(pooled) or 1)).astype(np.float32)


@dataclass(frozen=True)
class DescriptorSampler:
    """`sampler(pixels)`: kind -> at most `count` of a picture's local descriptors, sampled by the seed and the pixels.

    Can be pickled.
    """

    grid: PatchGrid
    count: int
    seed: int

    def __call__(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        generator = np.random.default_rng([self.seed, zlib.crc32(pixels.tobytes())])
        with one_thread():
            described = {kind: describe(pixels, self.grid) for kind, describe in LOCAL.items()}
        return {kind: generator.permutation(descriptors)[: self.count] for kind, descriptors in described.items()}


@dataclass(frozen=True)
class StandardDescriber:
    """`describer(pixels)`: one float32 vector, the parts GLOBAL and LOCAL concatenated.

    With `flip`, the mean over the picture and its mirror image.
    """

    grid: PatchGrid
    flip: bool
    codebooks: Mapping[str, Codebook]

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        return np.concatenate(list(self.parts(pixels).values()))

    def parts(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        """Kind -> (size,) float32."""
        with one_thread():
            parts = self._describe(pixels)
            if not self.flip:
                return parts
            mirrored = self._describe(np.ascontiguousarray(pixels[:, ::-1]))
        return {kind: (part + mirrored[kind]) / 2 for kind, part in parts.items()}

    def _describe(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        parts = {kind: describe(pixels) for kind, describe in GLOBAL.items()}
        return parts | {
            kind: self.codebooks[kind].pool(describe(pixels, self.grid)) for kind, describe in LOCAL.items()
        }

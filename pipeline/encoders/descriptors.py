"""The five visual descriptors of Gong et al. (2014, Table 1).

GIST and the RGB histogram describe a whole image. CSIFT, RGBSIFT and HOG describe every point of a dense grid, and
codebooks and VLAD pool the points to one vector per image. Pixels are (side, side, 3) uint8 RGB in all functions.
OpenCV computes the descriptors: the Gabor filters of GIST are applied to an image pyramid, not in the Fourier domain,
and a colour SIFT consists of the SIFTs of three channels, one after another.
"""

import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import cv2
import numpy as np
from threadpoolctl import ThreadpoolController

GIST_SIDE = 128
"""Side in pixels to which an image is resized for GIST."""
GIST_CELLS = 4
"""Number of cells along a side in which GIST averages the responses."""
GIST_DIRECTIONS = (8, 8, 4)
"""Number of Gabor directions per octave. 20 filters, 4 x 4 cells and 3 channels give the usual 960 dimensions."""
CONTRAST_SIGMA = 6.5
"""Standard deviation in pixels of the Gaussian filters that normalise the local contrast before GIST."""
CONTRAST_FLOOR = 0.2
"""Value that is added to the local contrast, in logarithms of 8-bit values, so that flat areas are not amplified."""
COLOUR_LEVELS = 8
"""Number of levels per channel in the RGB histogram."""
HOG_ORIENTATIONS = 9


@dataclass(frozen=True)
class PatchGrid:
    """A grid of squares with sides of `patch` (even) pixels, whose upper left corners are `step` pixels apart.

    A grid point is the centre of a square. The descriptor of a grid point is computed from the pixels in the square.
    """

    step: int
    patch: int


def gist(pixels: np.ndarray) -> np.ndarray:
    """Compute GIST (960,) float32: the mean magnitude of Gabor responses in 4 x 4 cells of each channel.

    Source: Oliva and Torralba (2001).
    """
    image = cv2.resize(pixels, (GIST_SIDE, GIST_SIDE), interpolation=cv2.INTER_AREA).astype(np.float64)
    image = np.log1p(image)
    image -= cv2.GaussianBlur(image, (0, 0), CONTRAST_SIGMA)
    variance = cv2.GaussianBlur((image**2).mean(axis=2), (0, 0), CONTRAST_SIGMA)  # mean over the channels
    image /= CONTRAST_FLOOR + np.sqrt(np.maximum(variance, 0))[..., None]
    cells = []
    for directions in GIST_DIRECTIONS:
        for pair in _gabor_filters(directions):
            energy = cv2.magnitude(*(cv2.filter2D(image, cv2.CV_64F, kernel) for kernel in pair))
            cells.append(cv2.resize(energy, (GIST_CELLS, GIST_CELLS), interpolation=cv2.INTER_AREA))
        image = cv2.pyrDown(image)
    # Rounding to float32 hides the rounding differences of OpenCV between processes.
    return np.concatenate(cells, axis=None).astype(np.float32)


def rgb_histogram(pixels: np.ndarray) -> np.ndarray:
    """Compute the square roots of the frequencies of 8 x 8 x 8 colours: (512,) float32 of unit length."""
    counts = cv2.calcHist([pixels], [0, 1, 2], None, [COLOUR_LEVELS] * 3, [0, 256] * 3)
    return np.sqrt(counts.ravel() / (pixels.size // 3))


def rgb_sift(pixels: np.ndarray, grid: PatchGrid) -> np.ndarray:
    """Compute the SIFT descriptors of the red, green and blue channels at the grid points: (n_points, 384) float32.

    A row has the 128 numbers of each channel one after another. OpenCV scales and rounds the numbers, so that the
    vector of a channel has about the length 512, or is zero in a flat area.
    """
    return _sift(pixels, grid)


def colour_sift(pixels: np.ndarray, grid: PatchGrid) -> np.ndarray:
    """Compute C-SIFT descriptors (van de Sande et al. 2010) at the grid points: (n_points, 384) float32.

    A row has the SIFT descriptors of three channels, with 128 numbers each: the intensity, (R - G) / (R + G + B), and
    (R + G - 2 B) / (R + G + B). The channels are scaled to 8 bits. The descriptors are scaled as in `rgb_sift`.
    """
    red, green, blue = (pixels[..., channel].astype(np.float32) for channel in range(3))
    total = red + green + blue
    shade = np.maximum(total, 1)
    channels = (total / 3, ((red - green) / shade + 1) * 127.5, ((red + green - 2 * blue) / shade + 2) * 85)
    return _sift(np.stack(channels, axis=-1).astype(np.uint8), grid)


def hog(pixels: np.ndarray, grid: PatchGrid) -> np.ndarray:
    """Compute histograms of oriented gradients at the grid points: (n_points, 36) float32.

    Each square of the grid has 2 x 2 cells with histograms of 9 orientations. The gradient at a pixel is the gradient
    of the channel in which it is strongest.
    """
    block = (grid.patch,) * 2
    cell = (grid.patch // 2,) * 2
    descriptor = cv2.HOGDescriptor(block, block, cell, cell, HOG_ORIENTATIONS)
    return np.asarray(descriptor.compute(pixels, (grid.step,) * 2)).reshape(-1, 4 * HOG_ORIENTATIONS)


GLOBAL = {"gist": gist, "rgb": rgb_histogram}
LOCAL = {"csift": colour_sift, "rgbsift": rgb_sift, "hog": hog}


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit OpenCV and matrix products to one thread while the `with` block runs.

    Sums are then reproducible. Images are processed in parallel instead.
    """
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        with _thread_pools().limit(limits=1):
            yield
    finally:
        cv2.setNumThreads(threads)


_thread_pools = cache(ThreadpoolController)


def _sift(channels: np.ndarray, grid: PatchGrid) -> np.ndarray:
    points = _points(channels.shape[0], grid)
    sift = cv2.SIFT.create()
    return np.hstack([sift.compute(np.ascontiguousarray(channels[..., c]), points)[1] for c in range(3)])


@cache
def _points(side: int, grid: PatchGrid) -> list[cv2.KeyPoint]:
    """Return upright keypoints in the centres of the grid squares of an image.

    The keypoint size is such that the 4 x 4 bins of SIFT cover the square: a bin is 3/2 of the keypoint size wide.
    """
    centres = [corner + grid.patch / 2 for corner in range(0, side - grid.patch + 1, grid.step)]
    return [cv2.KeyPoint(x, y, grid.patch / 6, 0.0) for y in centres for x in centres]


@cache
def _gabor_filters(directions: int) -> list[list[np.ndarray]]:
    """Return, for each of `directions` directions, its even and its odd Gabor filter (11, 11).

    The values of each filter sum to 0, and their absolute values to 1. The wavelength is 5 pixels.
    """
    filters = []
    for number in range(directions):
        angle = math.pi * number / directions
        pair = [cv2.getGaborKernel((11, 11), 2.5, angle, 5, 1, phase, cv2.CV_64F) for phase in (0, math.pi / 2)]
        pair = [kernel - kernel.mean() for kernel in pair]
        filters.append([kernel / np.abs(kernel).sum() for kernel in pair])
    return filters


class Codebook(NamedTuple):
    """A codebook for pooling local descriptors.

    Descriptors x (n, raw_dim) are reduced to (x - mean) @ directions.T (n, dim). `words` are the cluster centres
    (n_words, dim) of reduced descriptors.
    """

    mean: np.ndarray
    directions: np.ndarray
    words: np.ndarray

    def pool(self, descriptors: np.ndarray) -> np.ndarray:
        """Reduce the local descriptors (n, raw_dim) of an image, and return their VLAD vector (n_words * dim,) float32.

        The vector has unit length, or is zero if its sums of differences are zero (see `vlad`).
        """
        return vlad((descriptors - self.mean) @ self.directions.T, self.words)


def vlad(descriptors: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Compute the VLAD vector (n_words * dim,) float32 of descriptors (n, dim) for words (n_words, dim).

    Each descriptor belongs to its nearest word. For each word, the vector has the sum of the differences, descriptor
    minus word, of its descriptors. Signed square roots are applied, and the vector is scaled to unit length unless it
    is zero. Source: Jégou et al. ([26] in Gong et al. 2014), with the signed square root of their later version.
    """
    nearest = (descriptors @ words.T - (words**2).sum(axis=1) / 2).argmax(axis=1)
    chosen = np.zeros((len(words), len(descriptors)), np.float32)
    chosen[nearest, np.arange(len(descriptors))] = 1
    residuals = (chosen @ descriptors - chosen.sum(axis=1, keepdims=True) * words).ravel()
    pooled = np.sign(residuals) * np.sqrt(np.abs(residuals))
    return (pooled / (np.linalg.norm(pooled) or 1)).astype(np.float32)


@dataclass(frozen=True)
class DescriptorSampler:
    """Function that samples at most `count` local descriptors of each kind in LOCAL from an image.

    The descriptors are computed at the points of `grid`, and returned as kind -> (n, raw_dim). The seed and the pixels
    determine the sample. The object can be pickled.
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
    """Function that describes an image by one float32 vector: its global and its pooled local descriptors.

    Local descriptors are computed at the points of `grid` and pooled by the codebook of their kind in `codebooks`. If
    `flip` is true, the vector is the mean over the image and its mirror image.
    """

    grid: PatchGrid
    flip: bool
    codebooks: Mapping[str, Codebook]

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        return np.concatenate(list(self.parts(pixels).values()))

    def parts(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the descriptor (size,) float32 of each kind in GLOBAL and LOCAL. The sizes of the kinds differ."""
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

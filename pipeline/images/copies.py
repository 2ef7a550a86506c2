"""Near copies of photographs: candidates by their features, verified on their pixels.

A copy may be encoded again, rescaled, cropped or mirrored. Features find what looks alike; whether it is the same
photograph is seen in its details: in thumbnails without their coarse light and shade, one is looked for in the other at
several sizes, also mirrored, by normalized cross-correlation. Two photographs of one scene share the scene, not these.
"""

from collections.abc import Mapping

import faiss
import numpy as np
from PIL import Image
from scipy import fft
from scipy.ndimage import gaussian_filter1d

SIDE = 48
"""Pixels of a thumbnail, whatever the photograph's shape: a crop then changes places alone."""
SIZES = tuple(round(SIDE * share) for share in (1, 0.95, 0.9, 0.85, 0.8))
"""Of a crop within the whole."""
FINE, COARSE = 0.8, 3.0
"""Standard deviations in pixels between which details lie."""
NOISE = 1.0
"""Grey levels of details that say nothing: a plain sky resembles no other."""
SAME = 0.85
"""Least correlation of a copy."""
NEIGHBOURS = 3
LEAST_COSINE = 0.5
"""Of the centred features of two photographs that are compared by their pixels."""
EXACT = 20_000
"""Photographs up to which all are compared with all; the neighbours of more come from an index."""
PAIRS = 512
"""Compared at once."""


def near_pairs(features: np.ndarray) -> np.ndarray:
    """(p, 2) rows, the lower first, of photographs whose `features` (n, d) are among each other's nearest."""
    vectors = features - features.mean(axis=0, dtype=np.float64).astype(np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    n, dim = vectors.shape
    factory = "Flat" if n <= EXACT else f"PCA{min(256, dim)},IVF{int(4 * n**0.5)},Flat"
    index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    if n > EXACT:
        index.train(vectors[:: max(1, n // 100_000)])
        faiss.extract_index_ivf(index).nprobe = 16
    index.add(vectors)
    cosines, rows = index.search(vectors, min(NEIGHBOURS + 1, n))
    queries, places = np.nonzero((cosines >= LEAST_COSINE) & (rows >= 0) & (rows != np.arange(n)[:, None]))
    return np.unique(np.sort(np.stack([queries, rows[queries, places]], axis=1), axis=1), axis=0)


def verify(pairs: np.ndarray, thumbnails: Mapping[int, np.ndarray]) -> np.ndarray:
    """(p,) the correlation of each of `pairs` (p, 2), whose (SIDE, SIDE) thumbnails are grey levels."""
    found = np.zeros(len(pairs))
    for start in range(0, len(pairs), PAIRS):
        sides = [np.stack([thumbnails[row] for row in rows]) for rows in pairs[start : start + PAIRS].T.tolist()]
        found[start : start + PAIRS] = np.maximum(_find(*sides, SIZES), _find(*reversed(sides), SIZES[1:]))
    return found


def grey(pixels: np.ndarray) -> np.ndarray:
    """(h, w) float32 of RGB pixels (h, w, 3)."""
    return pixels @ np.float32([0.299, 0.587, 0.114])


def _find(wholes: np.ndarray, crops: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """(p,) the greatest correlation of each of `crops` (p, SIDE, SIDE), shrunk to any of `sizes`, with a place in its
    whole."""
    details = _details(wholes, SIDE)
    spectrum = fft.rfft2(details)
    sums = np.zeros((len(details), SIDE + 1, SIDE + 1))
    sums[:, 1:, 1:] = np.square(details, dtype=np.float64).cumsum(axis=1).cumsum(axis=2)
    best = np.zeros(len(wholes))
    for size in sizes:
        crop, places = _details(crops, size), SIDE - size + 1
        inside = sums[:, size:, size:] - sums[:, :places, size:] - sums[:, size:, :places] + sums[:, :places, :places]
        lengths = np.sqrt(np.maximum(inside, 0)) * np.sqrt(np.square(crop).sum(axis=(1, 2)))[:, None, None]
        for turned in (crop, crop[:, :, ::-1]):
            products = fft.irfft2(spectrum * fft.rfft2(turned, (SIDE, SIDE)).conj(), (SIDE, SIDE))
            shares = products[:, :places, :places] / (lengths + (NOISE * size) ** 2)
            best = np.maximum(best, shares.max(axis=(1, 2)))
    return best


def _details(thumbnails: np.ndarray, size: int) -> np.ndarray:
    """(p, size, size): resized, without what is coarser or finer than details."""
    shrink = np.asarray(Image.fromarray(np.eye(SIDE, dtype=np.float32)).resize((SIDE, size), Image.Resampling.BILINEAR))
    fine, coarse = (gaussian_filter1d(shrink, width, axis=0, mode="nearest") for width in (FINE, COARSE))
    return fine @ thumbnails @ fine.T - coarse @ thumbnails @ coarse.T

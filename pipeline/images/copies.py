"""Near copies of photographs: candidates by their features, verified on their pixels.

A copy may be encoded again, rescaled, cropped or mirrored. Features find what looks alike; whether it is the same
photograph is seen in its details: in thumbnails without their coarse light and shade, one is looked for in the other at
several sizes, also mirrored, by normalized cross-correlation. Two photographs of one scene share the scene, not these.
"""

from collections.abc import Callable, Mapping
from typing import Any

import faiss
import numpy as np
from faiss.contrib.exhaustive_search import knn_ground_truth
from PIL import Image
from scipy import fft
from scipy.ndimage import gaussian_filter1d

from pipeline.compute.lazy_rows import DiskRows
from pipeline.compute.precision import scale_to_unit_length

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
BLOCK_ROWS = 4096
"""Photos in a block of features."""
PRINCIPAL = 256
"""Principal components of features in the index of many photos."""
EXACT = 20_000
"""Photographs up to which all are compared with all; the neighbours of more come from an index."""
PAIRS = 512
"""Compared at once."""


def near_pairs(features: Any, prepare: Callable[[np.ndarray], np.ndarray] = np.asarray) -> np.ndarray:
    """Find pairs (p, 2) of rows, the lower first, of photos whose `features` (n, d) are among each other's nearest.

    `features` is an array, or an object that reads some rows on request. `prepare` normalises such rows (k, d), a copy
    in float32. Two blocks of features are held at a time. The index of more than EXACT photos holds PRINCIPAL numbers
    per photo.
    """
    n, dim = features.shape
    blocks = np.array_split(np.arange(n), -(-n // BLOCK_ROWS))

    def read(rows: np.ndarray) -> np.ndarray:
        return prepare(features[rows].astype(np.float32))

    mean = (sum(read(rows).sum(axis=0, dtype=np.float64) for rows in blocks) / n).astype(np.float32)

    def centred(rows: np.ndarray) -> np.ndarray:
        return scale_to_unit_length(read(rows) - mean)

    if n > EXACT:
        principal = faiss.PCAMatrix(dim, min(PRINCIPAL, dim))
        principal.train(centred(np.linspace(0, n - 1, EXACT).astype(int)))
        vectors = np.concatenate([principal.apply(centred(rows)) for rows in blocks])
        index = faiss.index_factory(vectors.shape[1], f"IVF{int(4 * n**0.5)},Flat", faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add(vectors)
        index.nprobe = 16
    pairs, count = [], NEIGHBOURS + 1  # each row finds itself, too
    for queries in blocks:
        if n > EXACT:
            cosines, rows = index.search(vectors[queries], count)
        else:
            others = map(centred, blocks)
            cosines, rows = knn_ground_truth(centred(queries), others, count, faiss.METRIC_INNER_PRODUCT, ngpu=0)
        near, places = np.nonzero((cosines >= LEAST_COSINE) & (rows >= 0) & (rows != queries[:, None]))
        pairs.append(np.sort(np.stack([queries[near], rows[near, places]], axis=1), axis=1))
    return np.unique(np.concatenate(pairs), axis=0)


def verify(pairs: np.ndarray, thumbnails: Mapping[int, np.ndarray] | DiskRows) -> np.ndarray:
    """Compute the correlation (p,) of each of `pairs` (p, 2), whose thumbnails are SIDE * SIDE grey levels."""
    found = np.zeros(len(pairs))
    for start in range(0, len(pairs), PAIRS):
        rows = pairs[start : start + PAIRS].T.tolist()
        sides = [np.stack([thumbnails[row] for row in side]).reshape(-1, SIDE, SIDE) for side in rows]
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

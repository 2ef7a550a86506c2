"""Finds near-duplicates of photos. Features of the photos give candidates, which are then verified by their pixels.

A near-duplicate may be encoded again, rescaled, cropped or mirrored. Features find photos that look alike. Two photos
count as near-duplicates if their fine details agree: coarse light and shade are removed from the thumbnails, and one
thumbnail is searched in the other at several sizes, also mirrored, by normalised cross-correlation. Two photos of the
same scene do not have the same fine details.
"""

from collections.abc import Callable, Iterator, Mapping

import faiss
import numpy as np
from faiss.contrib.exhaustive_search import knn_ground_truth
from faiss.contrib.ivf_tools import add_preassigned
from PIL import Image
from scipy import fft
from scipy.ndimage import gaussian_filter1d

from pipeline.compute.lazy_rows import DiskRows, LazyRows
from pipeline.compute.precision import scale_to_unit_length

SIDE = 48
"""Side of a square thumbnail in pixels. Photos are squashed to this size, so that a crop only changes positions."""
CROP_SIZES = tuple(round(SIDE * share) for share in (1, 0.95, 0.9, 0.85, 0.8))
"""Sizes in pixels to which a thumbnail is reduced before it is searched in the other thumbnail."""
FINE_WIDTH = 0.8
"""Standard deviation in pixels of the Gaussian filter that removes structures finer than details."""
COARSE_WIDTH = 3.0
"""Standard deviation in pixels of the Gaussian filter whose result is subtracted, so that structures coarser than
details are removed."""
NOISE_LEVEL = 1.0
"""Amplitude in grey levels below which details count as noise, so that a plain sky does not match another plain sky."""
MIN_COPY_CORRELATION = 0.85
"""Smallest correlation, as `verify` returns it, at which two photos count as near-duplicates."""
NEIGHBOURS = 3
"""Number of nearest photos that are candidates for each photo."""
MIN_CANDIDATE_COSINE = 0.5
"""Smallest cosine of the centred features of two photos whose pixels are compared."""
BLOCK_ROWS = 4096
"""Largest number of photos in a block of features."""
PRINCIPAL_COMPONENTS = 256
"""Number of principal components of features in the indexes of many photos."""
INDEX_ROWS = 1 << 15
"""Largest number of photos in one index."""
INDEX_PROBES = 16
"""Number of inverted lists of each index that are searched for each photo."""
TRAINING_PHOTOS = 32
"""Number of photos per inverted list that are sampled to compute the centres of the lists."""
MAX_EXACT_PHOTOS = 20_000
"""Largest number of photos whose pairs are all compared. For more photos, neighbours are found with an index."""
BLOCK_PAIRS = 512
"""Number of pairs that are compared at once."""

ReadRows = Callable[[np.ndarray], np.ndarray]


def near_pairs(features: LazyRows, prepare: ReadRows = np.asarray) -> np.ndarray:
    """Find pairs (p, 2) of photos with similar `features` (n, d). A pair has the rows of two photos, the lower first.

    One photo of a pair is among the NEIGHBOURS nearest photos of the other, and the cosine of their centred features is
    at least MIN_CANDIDATE_COSINE. `prepare` normalises rows (k, d) of features. It gets a float32 copy of the rows. Two
    blocks of features are held in memory at a time. The principal components of more than MAX_EXACT_PHOTOS photos are
    in a temporary file.
    """
    count = features.shape[0]
    blocks = np.array_split(np.arange(count), -(-count // BLOCK_ROWS))

    def read(rows: np.ndarray) -> np.ndarray:
        return prepare(features[rows].astype(np.float32))

    total = np.sum([read(rows).sum(axis=0, dtype=np.float64) for rows in blocks], axis=0)
    mean = (total / count).astype(np.float32)

    def read_centred(rows: np.ndarray) -> np.ndarray:
        return scale_to_unit_length(read(rows) - mean)

    search = _search_index if count > MAX_EXACT_PHOTOS else _search_exactly
    pairs = []
    for queries, (cosines, rows) in zip(blocks, search(read_centred, blocks), strict=True):
        near = (cosines >= MIN_CANDIDATE_COSINE) & (rows >= 0) & (rows != queries[:, None])
        query, rank = np.nonzero(near)
        pairs.append(np.sort(np.stack([queries[query], rows[query, rank]], axis=1), axis=1))
    return np.unique(np.concatenate(pairs), axis=0)


def _search_exactly(read: ReadRows, blocks: list[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the cosines and the rows of the nearest photos of each photo, block by block.

    For a block of k photos, both arrays are (k, NEIGHBOURS + 1). A photo can be among its own nearest photos. `blocks`
    has the rows of the photos, and `read(rows)` returns their features (k, d) of unit length.
    """
    for queries in blocks:
        yield knn_ground_truth(read(queries), map(read, blocks), NEIGHBOURS + 1, faiss.METRIC_INNER_PRODUCT, ngpu=0)


def _search_index(read: ReadRows, blocks: list[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield approximate results of `_search_exactly`, from indexes of principal components of the features.

    Each index has at most INDEX_ROWS photos. All indexes have the same lists, so that the best results of all indexes
    together are the results of a single index of all photos.
    """
    count = sum(map(len, blocks))
    sample = np.linspace(0, count - 1, MAX_EXACT_PHOTOS).astype(int)
    gram = sum(block.T @ block for block in map(read, np.array_split(sample, -(-len(sample) // BLOCK_ROWS))))
    components = np.linalg.eigh(gram)[1][:, -PRINCIPAL_COMPONENTS:]
    dim = components.shape[1]
    vectors = DiskRows(dim)
    for rows in blocks:
        vectors.append(read(rows) @ components)
    n_lists = int(4 * count**0.5)
    sample = np.linspace(0, count - 1, min(count, TRAINING_PHOTOS * n_lists)).astype(int)
    centres = faiss.Kmeans(dim, n_lists, niter=10, spherical=True, min_points_per_centroid=1)
    centres.train(vectors[sample])
    lists = DiskRows(INDEX_PROBES, dtype=np.int64)
    for rows in blocks:
        lists.append(centres.index.search(vectors[rows], INDEX_PROBES)[1])
    nearest = [faiss.ResultHeap(len(rows), NEIGHBOURS + 1, keep_max=True) for rows in blocks]
    for held in np.array_split(np.arange(count), -(-count // INDEX_ROWS)):
        index = faiss.IndexIVFFlat(centres.index, dim, n_lists, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = INDEX_PROBES
        add_preassigned(index, vectors[held], lists[held][:, 0].copy(), held)
        for rows, heap in zip(blocks, nearest, strict=True):
            heap.add_result(*index.search_preassigned(vectors[rows], NEIGHBOURS + 1, lists[rows], None))
    for heap in nearest:
        heap.finalize()
        yield heap.D, heap.I


def verify(pairs: np.ndarray, thumbnails: Mapping[int, np.ndarray] | DiskRows) -> np.ndarray:
    """Compute the correlation (p,), from 0 to 1, of each of `pairs` (p, 2) of rows of `thumbnails`.

    A thumbnail has SIDE * SIDE grey levels.
    """
    correlations = np.zeros(len(pairs))
    for start in range(0, len(pairs), BLOCK_PAIRS):
        first, second = (
            np.stack([thumbnails[row] for row in rows]).reshape(-1, SIDE, SIDE)
            for rows in pairs[start : start + BLOCK_PAIRS].T.tolist()
        )
        correlations[start : start + BLOCK_PAIRS] = np.maximum(
            _correlate(first, second, CROP_SIZES), _correlate(second, first, CROP_SIZES[1:])
        )
    return correlations


def grey(pixels: np.ndarray) -> np.ndarray:
    """Convert RGB pixels (h, w, 3) to grey levels (h, w) float32."""
    return pixels @ np.array([0.299, 0.587, 0.114], np.float32)


def _correlate(wholes: np.ndarray, crops: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Compute the largest correlation of the two thumbnails of each of p pairs, as (p,).

    `wholes` and `crops` are (p, SIDE, SIDE), and have one thumbnail of each pair. The thumbnail in `crops` is reduced
    to each of the `sizes`, and is compared with every position in the thumbnail in `wholes`, as it is and mirrored.
    """
    details = _details(wholes, SIDE)
    spectrum = np.asarray(fft.rfft2(details))
    sums = np.zeros((len(details), SIDE + 1, SIDE + 1))
    sums[:, 1:, 1:] = np.square(details, dtype=np.float64).cumsum(axis=1).cumsum(axis=2)
    best = np.zeros(len(wholes))
    for size in sizes:
        crop = _details(crops, size)
        shifts = SIDE - size + 1
        inside = sums[:, size:, size:] - sums[:, :shifts, size:] - sums[:, size:, :shifts] + sums[:, :shifts, :shifts]
        lengths = np.sqrt(np.maximum(inside, 0)) * np.sqrt(np.square(crop).sum(axis=(1, 2)))[:, None, None]
        for turned in (crop, crop[:, :, ::-1]):
            turned_spectrum = np.asarray(fft.rfft2(turned, (SIDE, SIDE)))
            products = np.asarray(fft.irfft2(spectrum * turned_spectrum.conj(), (SIDE, SIDE)))
            correlations = products[:, :shifts, :shifts] / (lengths + (NOISE_LEVEL * size) ** 2)
            best = np.maximum(best, correlations.max(axis=(1, 2)))
    return best


def _details(thumbnails: np.ndarray, size: int) -> np.ndarray:
    """Resize thumbnails (p, SIDE, SIDE) to (p, size, size), and remove structures that are finer than FINE_WIDTH or
    coarser than COARSE_WIDTH."""
    shrink = np.asarray(Image.fromarray(np.eye(SIDE, dtype=np.float32)).resize((SIDE, size), Image.Resampling.BILINEAR))
    fine, coarse = (gaussian_filter1d(shrink, width, axis=0, mode="nearest") for width in (FINE_WIDTH, COARSE_WIDTH))
    return fine @ thumbnails @ fine.T - coarse @ thumbnails @ coarse.T

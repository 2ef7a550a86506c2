"""Short codes of vectors, in FAISS indexes that other programs can read.

A vector is projected to its first principal axes, and scaled to unit length if the model compares by cosine. A code
has one byte for each axis (`int8`). After a random rotation, which spreads the variance evenly, it can also have one
byte for each of several groups of axes: a product code (Jegou, Douze and Schmid 2011). The index compares by Euclidean
distances. They rank vectors of unit length better than inner products do, because a product code represents a shorter
vector.
"""

import math

import faiss
import numpy as np

CODES = {"int8": (None, None), "pq64": (64, 128), "pq32": (32, 96), "pq16": (16, 64)}
"""Name of a code -> its bytes, and the number of principal axes by default. None means all axes, with a byte for each.
"""
CENTROIDS = 256
"""Number of centroids for each group of axes, one for each value of a byte."""
MAX_TRAINING_ROWS = 1 << 16
"""Number of vectors from which codes are learned. FAISS uses at most 256 for each centroid."""


def build_codes(vectors: np.ndarray, metric: str, code: str, dims: int | None = None) -> faiss.Index:
    """Make an index of the codes of vectors (n, c) float32, in their order. Its queries are vectors (q, c).

    `metric` is the metric of the vectors, and `code` is a name in CODES. `dims` is the number of principal axes. The
    same vectors have the same codes.
    """
    width = vectors.shape[1]
    size, usual_dims = CODES[code]
    kept = min(dims or usual_dims or width, width)
    axes = np.linalg.eigh((vectors.T @ vectors).astype(np.float64))[1][:, : -kept - 1 : -1].T
    if size is None:
        codes = faiss.IndexScalarQuantizer(kept, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_L2)
    else:
        padded = size * math.ceil(kept / size)  # A product code divides its axes into groups of the same size.
        codes = faiss.IndexPQ(padded, size, 8, faiss.METRIC_L2)
        codes.pq.cp.min_points_per_centroid = 1  # Otherwise FAISS warns of small collections.
        random = np.random.default_rng(0).standard_normal((padded, padded))
        axes = np.linalg.qr(random)[0][:, :kept] @ axes
    projection = faiss.LinearTransform(width, codes.d, False)
    faiss.copy_array_to_vector(axes.astype(np.float32).ravel(), projection.A)
    projection.is_trained = True
    index = faiss.IndexPreTransform(codes)
    if metric == "inner_product":
        index.prepend_transform(faiss.NormalizationTransform(codes.d))
    index.prepend_transform(projection)
    training = vectors[:: math.ceil(len(vectors) / MAX_TRAINING_ROWS) or 1]
    # FAISS needs a vector for each centroid, so the vectors of a small collection are repeated.
    index.train(np.resize(training, (max(CENTROIDS, len(training)), width)))
    index.add(vectors)
    return index

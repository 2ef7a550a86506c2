"""Short codes of vectors, in FAISS indexes that other programs can read.

A vector is projected to the first principal axes of all vectors, and scaled to unit length if the model compares by
cosine. A code has one byte for each axis (`int8`). After a random rotation, which spreads the variance evenly, it can
instead have one byte for each of several groups of axes: a product code (Jegou, Douze and Schmid 2011). The index
compares by Euclidean distances. Euclidean distances rank vectors of unit length better than inner products do, because
a product code represents a vector that is shorter than the original vector.

The vectors of a model with hubness correction end with the columns of the correction, in which a small error changes
the scores more than in other columns. These columns are neither projected nor rotated. They have a byte each, or a
group of their own. Vectors with these columns are compared by inner products and are not scaled, because the weight of
the correction depends on the length of the other columns.
"""

import math

import faiss
import numpy as np

CODES = {"int8": (None, None), "pq64": (64, 128), "pq32": (32, 96), "pq16": (16, 64)}
"""Name of a code -> the number of its bytes, and the default number of axes. (None, None) means all axes, with a byte
for each axis."""
CENTROIDS = 256
"""Number of centroids for each group of axes in a product code, one for each value of a byte."""
CORRECTION_COLUMNS = 4
"""Number of columns that the hubness correction (pipeline.models.linear.corrected) adds at the end of a vector."""
VARYING_COLUMNS = 2
"""Number of the CORRECTION_COLUMNS whose values differ between the vectors of one modality. The other columns have the
same value in all vectors of images, or in all vectors of texts, and do not change the order of results."""
MAX_TRAINING_ROWS = 1 << 16
"""Largest number of vectors from which a product code is learned. FAISS uses at most 256 vectors for each centroid."""


def build_codes(
    vectors: np.ndarray, metric: str, code: str, dims: int | None = None, corrected: bool = False
) -> faiss.Index:
    """Return a FAISS index of the codes of `vectors` (n, c) float32, in their order. The index is searched with whole
    vectors (q, c), which it projects itself.

    `metric` is the metric of the vectors (inner_product or euclidean), and `code` is a name in CODES. `corrected` says
    whether the vectors end with the columns of a hubness correction. `dims` is the number of axes of a code, including
    these columns, or None for the default of the code. The index compares by inner products if `corrected` is true, and
    else by squared distances. With `inner_product`, uncorrected vectors are scaled to unit length after the projection,
    so the order of results is the order by cosine. Equal arguments give equal codes.
    """
    width = vectors.shape[1]
    own = vectors[:, : width - CORRECTION_COLUMNS] if corrected else vectors
    size, usual_dims = CODES[code]
    kept = min(dims or usual_dims or width, width)
    group = math.ceil(kept / size) if size else 1
    reserved = group * math.ceil(VARYING_COLUMNS / group) if corrected else 0
    kept = min(max(kept - reserved, 1), own.shape[1])
    axes = np.linalg.eigh((own.T @ own).astype(np.float64))[1][:, : -kept - 1 : -1].T
    similarity = faiss.METRIC_INNER_PRODUCT if corrected else faiss.METRIC_L2
    if size is None:
        codes = faiss.IndexScalarQuantizer(kept + reserved, faiss.ScalarQuantizer.QT_8bit, similarity)
    else:
        # A product code divides its axes into groups of the same size.
        codes = faiss.IndexPQ(size * group, size, 8, similarity)
        codes.pq.cp.min_points_per_centroid = 1  # Otherwise FAISS warns of small collections.
        random = np.random.default_rng(0).standard_normal((codes.d - reserved, codes.d - reserved))
        axes = np.linalg.qr(random)[0][:, :kept] @ axes
    matrix = np.zeros((codes.d, width), np.float32)
    matrix[: len(axes), : own.shape[1]] = axes
    if corrected:
        added = vectors[:, own.shape[1] :]
        varying = np.argsort(-((added - added[:1]) ** 2).sum(axis=0), kind="stable")[:VARYING_COLUMNS]
        matrix[len(axes) + np.arange(VARYING_COLUMNS), own.shape[1] + varying] = 1
    projection = faiss.LinearTransform(width, codes.d, False)
    faiss.copy_array_to_vector(matrix.ravel(), projection.A)
    projection.is_trained = True
    index = faiss.IndexPreTransform(codes)
    if metric == "inner_product" and not corrected:
        index.prepend_transform(faiss.NormalizationTransform(codes.d))
    index.prepend_transform(projection)
    training = vectors[:: math.ceil(len(vectors) / MAX_TRAINING_ROWS) or 1]
    # FAISS needs a vector for each centroid, so the vectors of a small collection are repeated.
    index.train(np.resize(training, (max(CENTROIDS, len(training)), width)))
    index.add(vectors)
    return index

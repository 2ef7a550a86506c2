"""Scores of all images by all sentences."""

import numpy as np
from scipy.spatial.distance import cdist

from pipeline.multivectors import Comparison, Items


def score(images: Items, sentences: Items, comparison: Comparison) -> np.ndarray:
    """(n, m): inner products of vectors, minus their squared distances, or by the rule of several an item."""
    if comparison == "inner_product":
        return images @ sentences.T
    if comparison == "euclidean":
        return -cdist(images, sentences, "sqeuclidean")
    from pipeline.metrics.multivector_scores import multivector_scores  # torch

    return multivector_scores(images, sentences, comparison).numpy()

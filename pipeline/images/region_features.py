"""Class scores and principal components of the features of regions."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from pipeline.errors import UsageError
from pipeline.images.boxes import Candidates, suppress

COMPONENTS = "components"
"""Kind of the stored principal components of an encoder's regions."""


class Classifier(NamedTuple):
    """A linear classifier: `weight` (1 + classes, dim), `bias` (1 + classes,); class 0 is the background."""

    weight: np.ndarray
    bias: np.ndarray

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """(n, 1 + classes) of features (n, dim)."""
        logits = features @ self.weight.T + self.bias
        exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
        return exponents / exponents.sum(axis=1, keepdims=True)


def rescore(
    regions: Candidates, features: np.ndarray, classifier: Classifier, iou: float, count: int
) -> tuple[Candidates, np.ndarray]:
    """The best `count` regions by their highest foreground probability, after suppression, as in R-CNN.

    Region 0, the whole image, stays first and keeps its score.
    """
    scores = classifier.probabilities(features)[:, 1:].max(axis=1).astype(np.float32)
    scores[:1] = regions.scores[:1]
    rows = np.concatenate([[0], 1 + suppress(Candidates(regions.boxes[1:], scores[1:]), iou, count)])
    return Candidates(regions.boxes[rows], scores[rows]), features[rows]


class PrincipalComponents(NamedTuple):
    """Maps features x to (x - mean) @ directions.T; `mean` (dim,), `directions` (n, dim)."""

    mean: np.ndarray
    directions: np.ndarray

    def __call__(self, features: np.ndarray) -> np.ndarray:
        return (features - self.mean) @ self.directions.T


def fit_projection(blocks: Iterable[np.ndarray], dimensions: int) -> PrincipalComponents:
    """The `dimensions` directions of greatest variance of features (n, dim), given in blocks of rows.

    The largest entry of each is positive. Raises UsageError for more `dimensions` than dim or n.
    """
    n, total, products, shift = 0, 0.0, 0.0, 0.0
    for block in blocks:
        if not n:
            shift = block.mean(axis=0, dtype=np.float64)  # near the mean: squares of large means lose the variance
        centred = block - shift
        n += len(block)
        total, products = total + centred.sum(axis=0), products + centred.T @ centred
    if not n or dimensions > min(n, len(total)):
        have = f"{n} regions of {len(total)} dimensions" if n else "no regions"
        raise UsageError(f"{dimensions} principal components of {have}; lower regions.dimensions")
    covariance = products / n - np.outer(total / n, total / n)
    directions = np.linalg.eigh(covariance)[1][:, ::-1][:, :dimensions].T
    signs = np.sign(np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1))
    return PrincipalComponents((shift + total / n).astype(np.float32), (directions * signs).astype(np.float32))

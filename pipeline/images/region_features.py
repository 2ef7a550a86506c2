"""Class scores and principal components of the features of regions."""

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


class Scatter(NamedTuple):
    """Of `count` features: their `mean` (dim,) and the `products` (dim, dim) about it, in double precision."""

    count: int
    mean: np.ndarray
    products: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray) -> "Scatter":
        """Of features (n, dim), n > 0."""
        mean = features.mean(axis=0, dtype=np.float64)
        centred = features - mean
        return cls(len(features), mean, centred.T @ centred)


def merge(a: Scatter | None, b: Scatter | None) -> Scatter | None:
    """The scatter of the features of both; None is that of none."""
    return absorb(a and a._replace(products=a.products.copy()), b)


def absorb(a: Scatter | None, b: Scatter | None) -> Scatter | None:
    """The same in the products of `a`, which is gone (Chan, Golub and LeVeque 1983, eq. 2.1)."""
    if a is None or b is None:
        return b if a is None else a
    count, apart = a.count + b.count, b.mean - a.mean
    shifts = apart * (a.count * b.count / count)
    for row, products in enumerate(a.products):
        products += b.products[row]
        products += apart[row] * shifts
    return Scatter(count, a.mean + apart * (b.count / count), a.products)


def fit_projection(scatter: Scatter | None, dimensions: int) -> PrincipalComponents:
    """The `dimensions` directions of greatest variance of features of this scatter.

    The largest entry of each is positive. Raises UsageError for more `dimensions` than dim or n.
    """
    if scatter is None or dimensions > min(scatter.count, len(scatter.mean)):
        have = f"{scatter.count} regions of {len(scatter.mean)} dimensions" if scatter else "no regions"
        raise UsageError(f"{dimensions} principal components of {have}; lower regions.dimensions")
    directions = np.linalg.eigh(scatter.products / scatter.count)[1][:, ::-1][:, :dimensions].T
    signs = np.sign(np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1))
    return PrincipalComponents(scatter.mean.astype(np.float32), (directions * signs).astype(np.float32))

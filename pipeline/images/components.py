"""Fewer dimensions for the features of regions."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from pipeline.errors import UsageError

COMPONENTS = "components"
"""Kind of the stored principal components of an encoder's regions."""


class PrincipalComponents(NamedTuple):
    """Principal components: features x become (x - mean) @ directions.T; `mean` (dim,), `directions` (n, dim)."""

    mean: np.ndarray
    directions: np.ndarray

    def __call__(self, features: np.ndarray) -> np.ndarray:
        return (features - self.mean) @ self.directions.T


def fit_projection(blocks: Iterable[np.ndarray], dimensions: int) -> PrincipalComponents:
    """The `dimensions` directions of greatest variance of features (n, dim), given in blocks of rows.

    Each has its largest entry positive. Raises UsageError where there are fewer dimensions or rows than that.
    """
    n, total, products, shift = 0, 0.0, 0.0, 0.0
    for block in blocks:
        if not n:
            shift = block.mean(axis=0, dtype=np.float64)  # near the mean: squares of large means would drown the rest
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

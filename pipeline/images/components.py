"""Fewer dimensions for the features of regions."""

from typing import NamedTuple

import numpy as np


class Projection(NamedTuple):
    """Principal components: features x become (x - mean) @ directions.T; `mean` (dim,), `directions` (n, dim)."""

    mean: np.ndarray
    directions: np.ndarray

    def __call__(self, features: np.ndarray) -> np.ndarray:
        return (features - self.mean) @ self.directions.T


def fit_projection(features: np.ndarray, dimensions: int) -> Projection:
    """The `dimensions` directions of greatest variance of features (n, dim), each with its largest entry positive."""
    mean = features.mean(axis=0, dtype=np.float64)
    centred = features - mean
    directions = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :dimensions].T
    signs = np.sign(np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1))
    return Projection(mean.astype(np.float32), (directions * signs).astype(np.float32))

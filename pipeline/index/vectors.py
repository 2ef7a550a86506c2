"""Vectors that may be more than fit into memory, in blocks and by row."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from pipeline.compute.lazy_rows import ChosenRows

BLOCK_ROWS = 65536


class Vectors(Protocol):
    """`count` vectors of `dim` numbers; row i is the same vector in every pass."""

    count: int
    dim: int

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all vectors in order, as (n_i, dim) float32."""
        ...

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors (k, dim) float32 of the ascending `rows` (k,)."""
        ...


class ArrayVectors:
    """The rows of an array (n, dim) float32, which may be read from files on request."""

    def __init__(self, array: np.ndarray | ChosenRows) -> None:
        self.array = array
        self.count, self.dim = array.shape

    def blocks(self) -> Iterator[np.ndarray]:
        return (self.array[start : start + BLOCK_ROWS] for start in range(0, self.count, BLOCK_ROWS))

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self.array[rows]


def evenly_spaced(n: int, most: int) -> np.ndarray:
    """At most `most` of the rows 0 to n - 1, from the first to the last."""
    return np.linspace(0, n - 1, min(n, most)).astype(np.int64)

"""Vectors rounded so that their scores are exact.

In floating point, a product of matrices gives equal vectors scores that differ in the last bit, depending on their
position in the matrix, so that chance would break ties. So every vector is first rounded to whole multiples of a small
fraction of the greatest length on its side, finer than the resolution of a score in single precision. All products and
sums are then whole numbers below 2**53, which double precision adds exactly in any order.
"""

import numpy as np

BITS = 25
"""Bits of a coordinate, for one product of two vectors."""
BLOCK_ROWS = 512
"""Vectors that are converted at once, and stay in the cache."""


def lengths_of(x: np.ndarray) -> np.ndarray:
    """(n,) the lengths of the vectors x (n, c)."""
    blocks = (x[first : first + BLOCK_ROWS].astype(np.float64) for first in range(0, len(x), BLOCK_ROWS))
    return np.sqrt(np.concatenate([np.zeros(0), *(np.einsum("ij,ij->i", block, block) for block in blocks)]))


def unit_above(length: float, bits: int = BITS) -> float:
    """The unit of the lattice of vectors of at most this length: 2**-bits of it, at most doubled."""
    return 2.0 ** (int(np.frexp(length)[1]) - bits)


def unit_of(x: np.ndarray, bits: int = BITS) -> float:
    """The unit of the lattice of the vectors x (n, c)."""
    return unit_above(lengths_of(x).max(initial=0), bits)


def to_lattice(x: np.ndarray, unit: float | None = None) -> np.ndarray:
    """(n, c) float64, the vectors x in whole units (None: their own unit)."""
    return np.rint(np.multiply(x, 1 / (unit or unit_of(x)), dtype=np.float64))

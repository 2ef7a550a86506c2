"""Vectors rounded so that their scores are exact.

In floating point, a product of matrices gives equal vectors scores that differ in the last bit, depending on their
position in the matrix, so that chance would break ties. So every vector is first rounded to whole multiples of a small
fraction of the greatest length on its side, finer than the resolution of a score in single precision. All products and
sums are then whole numbers below 2**53, which double precision adds exactly in any order.
"""

import numpy as np

BITS = 25
"""Bits of a coordinate, for one product of two vectors."""


def unit_of(x: np.ndarray, bits: int = BITS) -> float:
    """The unit of the lattice of the vectors x (n, c): 2**-bits of their greatest length, at most doubled."""
    length = np.sqrt(np.einsum("ij,ij->i", x, x, dtype=np.float64).max(initial=0))
    return 2.0 ** (int(np.frexp(length)[1]) - bits)


def to_lattice(x: np.ndarray, unit: float | None = None) -> np.ndarray:
    """(n, c) float64, the vectors x in whole units (None: their own unit)."""
    return np.rint(np.multiply(x, 1 / (unit or unit_of(x)), dtype=np.float64))

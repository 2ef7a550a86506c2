"""Vectors rounded so that their scores are exact.

In floating point, a product of matrices gives equal vectors scores that differ in the last bit, depending on where
in the matrix they stand; ties would be broken by chance. So every vector is first rounded to whole multiples of
a small share of the greatest length on its side, which is finer than single precision resolves a score. All products
and sums are then whole numbers below 2**53, which double precision adds exactly in any order.
"""

import numpy as np

BITS = 25
"""Of a coordinate, where two vectors make one product."""


def unit_of(x: np.ndarray, bits: int = BITS) -> float:
    """What one unit of the lattice of the vectors x (n, c) is: 2**-bits of their greatest length, at most doubled."""
    length = np.sqrt(np.einsum("ij,ij->i", x, x, dtype=np.float64).max(initial=0))
    return 2.0 ** (int(np.frexp(length)[1]) - bits)


def to_lattice(x: np.ndarray, unit: float | None = None) -> np.ndarray:
    """(n, c) float64, the vectors x as whole numbers of a unit (None: their own)."""
    return np.rint(np.multiply(x, 1 / (unit or unit_of(x)), dtype=np.float64))

"""The symmetric rank-k update without Python's lock.

SciPy's own wrapper keeps the lock during the whole product, so that no other thread can read, hash or convert the next
block meanwhile. SciPy offers the same function to C (scipy.linalg.cython_blas), and ctypes releases the lock for it.
"""

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np

LETTERS = {np.dtype(np.float32): ("s", ctypes.c_float), np.dtype(np.float64): ("d", ctypes.c_double)}


def add_gram(total: np.ndarray, z: np.ndarray, factor: float = 1.0) -> None:
    """Add factor z'z to the upper triangle of `total` (D, D), in Fortran order and of the type of z (n, D)."""
    size = total.shape[0]
    if total.shape != (size, z.shape[1]) or total.dtype != z.dtype or not total.flags.f_contiguous:
        raise ValueError(f"cannot add the products of {z.shape} {z.dtype} to {total.shape} {total.dtype}")
    real = LETTERS[total.dtype][1]
    n, k = ctypes.c_int(size), ctypes.c_int(len(z))
    alpha, beta, z = real(float(factor)), real(1), np.ascontiguousarray(z)
    if z.size:  # z' is (D, n) in Fortran order
        _syrk(total.dtype)(b"U", b"N", n, k, alpha, z.ctypes.data, n, beta, total.ctypes.data, n)


@cache
def _syrk(dtype: np.dtype) -> Callable[..., None]:
    from scipy.linalg import cython_blas

    letter, real = LETTERS[dtype]
    capsule = cython_blas.__pyx_capi__[f"{letter}syrk"]
    name = ctypes.pythonapi.PyCapsule_GetName
    name.argtypes, name.restype = [ctypes.py_object], ctypes.c_char_p
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    whole, some, array = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(real), ctypes.c_void_p
    of = [ctypes.c_char_p, ctypes.c_char_p, whole, whole, some, array, whole, some, array, whole]
    return ctypes.CFUNCTYPE(None, *of)(pointer(capsule, name(capsule)))

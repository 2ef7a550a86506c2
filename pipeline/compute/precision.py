"""Precision of numbers: conversion to float32 and NumPy, the choice of bfloat16, scaling of rows to unit length, and
checks for finite numbers."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.compute import runtime
from pipeline.errors import IntegrityError

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike

MIN_ELEMENTS_FOR_TORCH = 1 << 30
"""Smallest number of elements of an array for which torch is imported to convert the array to float32. With fewer
elements, the faster conversion by torch saves less time than the import takes (1.5 s)."""
FLOAT16_VALUES = 1 << 16
"""Number of different float16 values."""


def to_float32(block: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return a float32 copy of `block` (any shape, float16 or float32). The copy is written into `out` if `out` is
    given.

    The conversion is exact. A float16 block is converted by torch, which is fastest, if torch is loaded already or if
    the block has at least MIN_ELEMENTS_FOR_TORCH elements. Otherwise a float16 block of more than FLOAT16_VALUES
    elements is converted by a table of all float16 values, which is faster than NumPy's conversion, and a smaller block
    by NumPy.
    """
    if out is None:
        out = np.empty(block.shape, np.float32)
    if block.dtype == np.float16 and ("torch" in sys.modules or block.size >= MIN_ELEMENTS_FOR_TORCH):
        import torch

        torch.from_numpy(out).copy_(torch.from_numpy(block))
    elif block.dtype == np.float16 and block.size > FLOAT16_VALUES:
        look_up(float16_values(), block, out)
    else:
        np.copyto(out, block)
    return out


def float16_values() -> np.ndarray:
    """Return all float16 values in float32, (FLOAT16_VALUES,), in the order of their bits as whole numbers."""
    return np.arange(FLOAT16_VALUES, dtype=np.uint16).view(np.float16).astype(np.float32)


def look_up(table: np.ndarray, block: np.ndarray, out: np.ndarray) -> None:
    """Replace each number of `block`, float16 of any shape, by its entry in `table` (FLOAT16_VALUES,), and write the
    results to `out`. The entries of the table are in the order of `float16_values`."""
    np.take(table, block.view(np.uint16), out=out, mode="clip")  # The default mode would buffer `out`.


def to_numpy(values: "ArrayLike | torch.Tensor") -> np.ndarray:
    """Return values, such as a list, an array or a tensor, as a NumPy array, without a copy if possible.

    A tensor may be on a GPU and may require gradients. Tensors in bfloat16 and float8 become float32, because NumPy
    lacks these types.
    """
    if "torch" in sys.modules:
        import torch

        if isinstance(values, torch.Tensor):
            tensor = values.detach().cpu()
            is_known = "bfloat16" not in str(tensor.dtype) and "float8" not in str(tensor.dtype)
            return (tensor if is_known else tensor.float()).numpy()
    return np.asarray(values)


def fast_at_bfloat16(device: "torch.device") -> bool:
    """Return whether `device` is a GPU or CPU with hardware for products in bfloat16. On other hardware torch emulates
    these products slowly."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and not {"avx512_bf16", "amx_bf16"}.isdisjoint(runtime.cpu_flags())


FAST_AT_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}
"""Compute capabilities of GPUs that multiply float64 at least half as fast as float32 (GPUs for data centres)."""


def fast_at_float64(device: "torch.device") -> bool:
    """Return whether `device` is a GPU that multiplies float64 at least half as fast as float32."""
    import torch

    return device.type == "cuda" and torch.cuda.get_device_capability(device) in FAST_AT_FLOAT64


def choose_precision(name: str, device: "torch.device") -> "torch.dtype":
    """Return the dtype with the name `float32`, `bfloat16` or `auto`. `auto` is bfloat16 if `device` has hardware for
    products in bfloat16, and else float32."""
    import torch

    fast = name == "bfloat16" or (name == "auto" and fast_at_bfloat16(device))
    return torch.bfloat16 if fast else torch.float32


def scale_to_unit_length(rows: np.ndarray) -> np.ndarray:
    """Scale each row of `rows` (n, d), float32 or float64, to unit length in place, and return `rows`.

    Rows of zeros stay zero. If the length of a row is below 1e-15 or above 1e15, its squares may vanish or overflow, so
    the row is first divided by the greatest magnitude of its numbers.
    """
    with np.errstate(over="ignore", under="ignore"):
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    extreme = np.flatnonzero(~((lengths > 1e-15) & (lengths < 1e15)))
    if len(extreme):
        scaled = rows[extreme]
        greatest = np.abs(scaled).max(axis=1, keepdims=True, initial=0)
        scaled /= np.where(greatest > 0, greatest, 1)
        rows[extreme], lengths[extreme] = scaled, np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    rows /= np.where(lengths > 0, lengths, 1)[:, None]
    return rows


def require_finite(source: Path | str, name: str, array: np.ndarray) -> None:
    """Check that all numbers of `array` (n, ...) are finite. An array of integers or other types always passes.

    Raises IntegrityError, whose message names the `source` (such as a file), the array's `name`, and the number of the
    first row, from 0, that is not finite.
    """
    if array.dtype.kind != "f" or not array.size:
        return
    # If the sum is finite, all numbers are finite. The sum takes less time than checking each number. If the sum is
    # not finite, each row is checked, because the sum of finite numbers may overflow. NumPy's sum of float16
    # numbers is fastest in double precision, and would overflow soon in half precision.
    with np.errstate(all="ignore"):
        if np.isfinite(array.sum(dtype=np.float64 if array.dtype == np.float16 else None)):
            return
    bad = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))
    if len(bad):
        raise IntegrityError(
            f"{source}: {name} row {bad[0]} is not finite, because it contains NaN or infinity. {len(bad)} of"
            f" {len(array)} rows are not finite. Repair or exclude the photos or captions from which these rows were"
            " computed, and compute the rows again."
        )

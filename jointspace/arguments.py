"""Arguments as a caller has them: vectors as arrays, lists, sparse matrices or tensors on any device, and numbers of
Python, numpy or torch."""

import operator
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from scipy import sparse

from pipeline.compute.precision import to_numpy
from pipeline.errors import InputError, UsageError
from pipeline.printable import is_unicode

Rows = np.ndarray | sparse.sparray | sparse.spmatrix
Views = Rows | Mapping[str, Rows]
"""Vectors, one a row; or those of several encoders, by name, which stand side by side."""
SHOWN = 100
"""Characters of a text that an error repeats."""
NUMBERS = "biuf"
"""NumPy's kinds of dtype that are real numbers."""


def to_count(value: Any, name: str, least: int = 1) -> int:
    """A whole number. Raises UsageError for anything else, and below `least`."""
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or isinstance(value, bool | np.bool_):
        raise UsageError(f"{name} is {value!r}; give a whole number")
    if count < least:
        raise UsageError(f"{name} is {count}; give at least {least}")
    return count


def to_number(value: Any, name: str) -> float:
    """A real number. Raises UsageError for anything else."""
    try:
        if not isinstance(value, str | bytes | bool | np.bool_):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise UsageError(f"{name} is {value!r}; give a number")


def require_text(value: Any, name: str) -> None:
    """Raises UsageError for what is no str, and for lone surrogates, as in a file name that is no UTF-8."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is of type {type(value).__name__}; give a str")
    if not is_unicode(value):
        raise UsageError(f"{name} has lone surrogates: {value[:SHOWN]!r}; decode its bytes in their own encoding")


def to_strings(values: Iterable[str], name: str, count: int) -> list[str]:
    """`count` strings, which may be paths, or a column of Arrow. Raises InputError for another number of them, and
    UsageError as `require_text`."""
    items = values.to_pylist() if hasattr(values, "to_pylist") else values
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise UsageError(f"{name} is of type {type(items).__name__}; give a list, one str for each vector")
    strings = [os.fspath(item) if isinstance(item, os.PathLike) else item for item in items]
    if len(strings) != count:
        raise InputError(f"there are {len(strings)} {name} for {count} vectors; give one each")
    for row, string in enumerate(strings):
        require_text(string, f"{name}[{row}]")
    return strings


def to_rows(vectors: Any, name: str, dim: int | None = None, keep_sparse: bool = False) -> Any:
    """The `vectors` (n, d) as float32, an array; sparse ones as a csr_array if `keep_sparse`.

    Raises InputError naming the first row that is not finite, and for what is no table of real numbers, `dim` wide.
    """
    if sparse.issparse(vectors) and vectors.dtype.kind in NUMBERS and keep_sparse:
        rows = sparse.csr_array(vectors, dtype=np.float32)
    else:
        rows = to_array(vectors.toarray() if sparse.issparse(vectors) else vectors, name)
    if rows.ndim != 2 or dim not in (None, rows.shape[1]):
        raise InputError(f"{name} vectors must be of shape (n, {dim or 'd'}), not {rows.shape}")
    if len(bad := _not_finite(rows)):
        raise InputError(
            f"{name} vectors: row {bad[0]} is not finite ({len(bad)} such rows); remove or repair their source"
        )
    return rows


def to_views(vectors: Views, name: str, dims: Mapping[str, int | None] | None, dense: bool = False) -> dict[str, Any]:
    """The vectors of each encoder, those of a single one under `name` or its own. Raises InputError where they are not
    finite, not of `dims`, or not as many."""
    alone = next(iter(dims)) if dims and len(dims) == 1 else name
    blocks = vectors if isinstance(vectors, Mapping) else {alone: vectors}
    if dims is not None and blocks.keys() != dims.keys():
        raise InputError(f"{name} vectors of {', '.join(dims)} are needed, not of {', '.join(blocks)}")
    dims = dims or {}
    views = {key: to_rows(block, key, dims.get(key), keep_sparse=not dense) for key, block in blocks.items()}
    if len({block.shape[0] for block in views.values()}) != 1:
        raise InputError(f"{name} vectors of each encoder must be as many: {[one.shape[0] for one in views.values()]}")
    return views


def to_array(vectors: Any, name: str) -> np.ndarray:
    """Real numbers as float32; a column of arrays, as of a data frame, is their rows. Raises InputError for anything
    else."""
    try:
        if isinstance(vectors, np.ma.MaskedArray):
            vectors = vectors.astype(np.float32).filled(np.nan)
        array = to_numpy(vectors)
        array = np.stack(array) if array.dtype == object and len(array) else array
        if array.dtype.kind in NUMBERS + "O":
            with np.errstate(over="ignore"):
                return np.ascontiguousarray(array, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} vectors are no table of numbers ({error}); give real numbers") from error
    raise InputError(f"{name} vectors are of {array.dtype}; give real numbers")


def _not_finite(rows: Any) -> np.ndarray:
    """The rows with a value that is not finite, ascending."""
    if sparse.issparse(rows):
        return np.unique(rows.tocoo().row[~np.isfinite(rows.data)])
    with np.errstate(invalid="ignore"):
        return np.flatnonzero(~np.isfinite(rows.sum(axis=1, dtype=np.float64)))  # finite where every term is

"""Checks of arguments: vectors (arrays, lists, sparse matrices, tensors on any device) and numbers."""

import operator
import os
from collections.abc import Iterable, Mapping
from typing import Protocol, SupportsFloat, SupportsIndex, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from pipeline.compute.precision import to_numpy
from pipeline.errors import InputError, UsageError
from pipeline.printable import is_unicode

Rows = np.ndarray | sparse.sparray | sparse.spmatrix
Views = Rows | Mapping[str, Rows]
"""Vectors, one per row, or a mapping of encoder names to vectors, which are concatenated."""
Vectors = Rows | ArrayLike
"""Vectors in any form that a caller may have. Tensors of torch are ArrayLike too."""
Block = np.ndarray | sparse.csr_array
"""The vectors (n, d) of one encoder as float32, dense or sparse."""
MAX_SHOWN_CHARACTERS = 100
"""Maximum number of characters of a text that an error repeats."""
NUMBERS = "biuf"
"""Kinds of NumPy dtypes that are real numbers."""


def to_count(value: SupportsIndex, name: str, least: int = 1) -> int:
    """Return a whole number. Raises UsageError for anything else, and for a number below `least`."""
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or isinstance(value, bool | np.bool_):
        raise UsageError(f"{name} is {value!r}; give a whole number")
    if count < least:
        raise UsageError(f"{name} is {count}; give at least {least}")
    return count


def to_number(value: SupportsFloat, name: str) -> float:
    """Return a real number. Raises UsageError for anything else."""
    try:
        if not isinstance(value, str | bytes | bool | np.bool_):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise UsageError(f"{name} is {value!r}; give a number")


def require_text(value: str, name: str) -> None:
    """Raise UsageError for a value that is not a str, and for lone surrogates, which a file name may have."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is of type {type(value).__name__}; give a str")
    if not is_unicode(value):
        raise UsageError(
            f"{name} has lone surrogates: {value[:MAX_SHOWN_CHARACTERS]!r}; decode its bytes in their own encoding"
        )


@runtime_checkable
class ArrowColumn(Protocol):
    """A column of Arrow."""

    def to_pylist(self) -> list[str]: ...


def to_strings(values: Iterable[str | os.PathLike[str]] | ArrowColumn, name: str, count: int) -> list[str]:
    """Return `count` strings, which may be given as paths or as a column of Arrow.

    Raises InputError for another number of them, and UsageError as `require_text` does.
    """
    items = values.to_pylist() if isinstance(values, ArrowColumn) else values
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise UsageError(f"{name} is of type {type(items).__name__}; give a list, one str for each vector")
    strings = [os.fspath(item) if isinstance(item, os.PathLike) else item for item in items]
    if len(strings) != count:
        raise InputError(f"there are {len(strings)} {name} for {count} vectors; give one each")
    for row, string in enumerate(strings):
        require_text(string, f"{name}[{row}]")
    return strings


def to_rows(vectors: Vectors, name: str, dim: int | None = None, keep_sparse: bool = False) -> Block:
    """Return the `vectors` (n, d) as float32: an array, or a csr_array for sparse vectors if `keep_sparse`.

    Raises InputError naming the first row that is not finite, and for anything but a table of real numbers with `dim`
    columns.
    """
    if not isinstance(vectors, sparse.sparray | sparse.spmatrix):
        rows = to_array(vectors, name)
    elif keep_sparse and sparse.csr_array(vectors).dtype.kind in NUMBERS:
        rows = sparse.csr_array(vectors, dtype=np.float32)
    else:
        rows = to_array(sparse.csr_array(vectors).toarray(), name)
    shape = _shape(rows)
    if len(shape) != 2 or dim not in (None, shape[1]):
        raise InputError(f"{name} vectors must be of shape (n, {dim or 'd'}), not {shape}")
    if len(bad := _not_finite(rows)):
        raise InputError(
            f"{name} vectors: row {bad[0]} is not finite ({len(bad)} such rows); remove or repair their source"
        )
    return rows


def to_dense_views(vectors: Views, name: str, dims: Mapping[str, int | None] | None) -> dict[str, np.ndarray]:
    """Return the vectors of each encoder as arrays. Raises InputError as `to_views` does."""
    blocks = to_views(vectors, name, dims, keep_sparse=False)
    return {name: block for name, block in blocks.items() if isinstance(block, np.ndarray)}


def to_views(
    vectors: Views, name: str, dims: Mapping[str, int | None] | None, keep_sparse: bool = True
) -> dict[str, Block]:
    """Return the vectors of each encoder. The vectors of a single encoder come under its own name, or under `name`.

    Raises InputError if they are not finite or not of `dims`, or if one encoder has more vectors than another.
    """
    alone = next(iter(dims)) if dims and len(dims) == 1 else name
    blocks = vectors if isinstance(vectors, Mapping) else {alone: vectors}
    if dims is not None and blocks.keys() != dims.keys():
        raise InputError(f"{name} vectors of {', '.join(dims)} are needed, not of {', '.join(blocks)}")
    dims = dims or {}
    views = {key: to_rows(block, key, dims.get(key), keep_sparse) for key, block in blocks.items()}
    counts = [row_count(block) for block in views.values()]
    if len(set(counts)) != 1:
        raise InputError(
            f"{name} vectors: every encoder needs the same number of vectors, but the numbers are {counts}"
        )
    return views


def to_dense(block: Block) -> np.ndarray:
    """Return vectors as an array."""
    return block if isinstance(block, np.ndarray) else block.toarray()


def row_count(block: Block) -> int:
    """Return the number of vectors (n, d)."""
    return _shape(block)[0]


def _shape(block: Block) -> tuple[int, ...]:
    shape = block.shape
    assert shape is not None  # SciPy's stubs allow a matrix without a shape
    return shape


def to_array(vectors: ArrayLike, name: str) -> np.ndarray:
    """Return real numbers as float32. A column of arrays, as a data frame has it, becomes their rows.

    Raises InputError for anything else.
    """
    try:
        masked = isinstance(vectors, np.ma.MaskedArray)
        array = np.ma.filled(vectors.astype(np.float32), np.nan) if masked else to_numpy(vectors)
        array = np.stack(list(array)) if array.dtype == object and len(array) else array
        if array.dtype.kind in NUMBERS + "O":
            with np.errstate(over="ignore"):
                return np.ascontiguousarray(array, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} vectors are not a table of numbers ({error}); give real numbers") from error
    raise InputError(f"{name} vectors are of {array.dtype}; give real numbers")


def _not_finite(rows: Block) -> np.ndarray:
    """Return the rows with a value that is not finite, in ascending order."""
    if isinstance(rows, sparse.csr_array):
        return np.unique(rows.tocoo().row[~np.isfinite(rows.data)])
    with np.errstate(invalid="ignore"):
        return np.flatnonzero(~np.isfinite(rows.sum(axis=1, dtype=np.float64)))  # finite where every term is

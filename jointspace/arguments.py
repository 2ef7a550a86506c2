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
"""The vectors of one encoder, one per row, or a mapping of encoder names to such vectors. In a mapping, row i of each
encoder belongs to the same item, and a model concatenates the vectors of all encoders."""
Vectors = Rows | ArrayLike
"""The vectors of one encoder as an array, a sparse matrix, nested lists, or a tensor of torch (an ArrayLike too)."""
Block = np.ndarray | sparse.csr_array
"""The vectors (n, d) of one encoder as float32, dense or sparse."""
MAX_SHOWN_CHARACTERS = 100
"""Maximum number of characters of a wrong text that an error message quotes."""
NUMBERS = "biuf"
"""Kinds of NumPy dtypes that are accepted as real numbers: Booleans, integers and floating-point numbers."""


def to_count(value: SupportsIndex, name: str, least: int = 1) -> int:
    """Return `value` as an int.

    Raises UsageError if `value` is a bool, is not an integer, or is less than `least`. `name` is the name of the value
    in the message.
    """
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or isinstance(value, bool | np.bool_):
        raise UsageError(f"{name} is {value!r}, but must be a whole number. Pass an int.")
    if count < least:
        raise UsageError(f"{name} is {count}, but must be at least {least}. Pass a greater number.")
    return count


def to_number(value: SupportsFloat, name: str) -> float:
    """Return `value` as a float. NaN and infinity are accepted.

    Raises UsageError if `value` is not a number, or is an integer that is too large for a float. A bool and a str are
    not numbers. `name` is the name of the value in the message.
    """
    try:
        if not isinstance(value, str | bytes | bool | np.bool_):
            return float(value)
    except OverflowError as error:
        raise UsageError(f"{name} is too large for a float. Pass a smaller number.") from error
    except (TypeError, ValueError):
        pass
    raise UsageError(f"{name} is {value!r}, but must be a number. Pass an int or a float.")


def require_text(value: str, name: str) -> None:
    """Raise UsageError if `value` is not a str, or if it contains lone surrogates, as undecodable file names do.

    `name` is the name of the value in the message.
    """
    if not isinstance(value, str):
        raise UsageError(f"{name} has the type {type(value).__name__}, but must be a str. Pass a str.")
    if not is_unicode(value):
        raise UsageError(
            f"{name} contains lone surrogates: {value[:MAX_SHOWN_CHARACTERS]!r}. Decode the bytes of this text with the"
            " encoding in which they were written."
        )


@runtime_checkable
class ArrowColumn(Protocol):
    """A column of an Arrow table."""

    def to_pylist(self) -> list[str]: ...


def to_strings(values: Iterable[str | os.PathLike[str]] | ArrowColumn, name: str, count: int) -> list[str]:
    """Return `values` as a list of `count` strings. The values may be strings, paths or an Arrow column.

    Raises InputError if the number of values is not `count`. Raises UsageError if `values` is a single text or not
    iterable, or if `require_text` refuses a value. The messages call the values `name`.
    """
    items = values.to_pylist() if isinstance(values, ArrowColumn) else values
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise UsageError(
            f"{name} has the type {type(items).__name__}, but must be a list with one str per vector. Pass such a list."
        )
    strings = [os.fspath(item) if isinstance(item, os.PathLike) else item for item in items]
    if len(strings) != count:
        raise InputError(f"There are {len(strings)} {name} for {count} vectors. Pass exactly one str per vector.")
    for row, string in enumerate(strings):
        require_text(string, f"{name}[{row}]")
    return strings


def to_rows(vectors: Vectors, name: str, dim: int | None = None, keep_sparse: bool = False) -> Block:
    """Return the `vectors` (n, d) as float32: an array, or, if `keep_sparse` is true, a csr_array for sparse vectors.

    `dim` is the required number of columns d, or None if any number is accepted. `name` says in messages which vectors
    are wrong. Raises InputError if the vectors are not a table of real numbers, if the number of columns is not `dim`,
    or if a row contains NaN or infinity. In the last case, the message has the number of the first such row.
    """
    if not isinstance(vectors, sparse.sparray | sparse.spmatrix):
        rows = to_array(vectors, name)
    elif keep_sparse and sparse.csr_array(vectors).dtype.kind in NUMBERS:
        rows = sparse.csr_array(vectors, dtype=np.float32)
    else:
        rows = to_array(sparse.csr_array(vectors).toarray(), name)
    shape = _shape(rows)
    if len(shape) != 2 or dim not in (None, shape[1]):
        raise InputError(
            f"The {name} vectors have the shape {shape}, but must have the shape (n, {dim or 'd'}). Pass an array with"
            " one vector per row."
        )
    if len(bad := _not_finite(rows)):
        raise InputError(
            f"Row {bad[0]} of the {name} vectors contains NaN or infinity (number of such rows: {len(bad)}). Rows are"
            " counted from 0. Remove these rows, or compute their vectors again."
        )
    return rows


def to_dense_views(vectors: Views, name: str, dims: Mapping[str, int | None] | None) -> dict[str, np.ndarray]:
    """Return the vectors of each encoder as encoder name -> float32 array (n, d). Sparse vectors become dense.

    `to_views` explains the arguments. Raises InputError if an encoder is missing or unknown, if the encoders have
    different numbers of vectors, or if vectors are not real numbers, are not finite, or have other dimensions than
    `dims` requires.
    """
    blocks = to_views(vectors, name, dims, keep_sparse=False)
    return {name: block for name, block in blocks.items() if isinstance(block, np.ndarray)}


def to_views(
    vectors: Views, name: str, dims: Mapping[str, int | None] | None, keep_sparse: bool = True
) -> dict[str, Block]:
    """Return the vectors of each encoder, as encoder name -> float32 vectors (n, d).

    `dims` maps the name of each required encoder to its number of dimensions, or to None if any number is accepted. If
    `dims` is None, any encoders are accepted. If `vectors` is not a mapping, it has the vectors of a single encoder.
    This encoder is the only encoder in `dims`, or has the name `name` if `dims` is None or has several encoders.
    `name`, such as image or text, also says in messages which vectors are wrong. Sparse vectors become dense unless
    `keep_sparse` is true.

    Raises InputError if an encoder is missing or not in `dims`, if the vectors are not real numbers, have other
    dimensions or are not finite, or if the encoders have different numbers of vectors.
    """
    alone = next(iter(dims)) if dims and len(dims) == 1 else name
    blocks = vectors if isinstance(vectors, Mapping) else {alone: vectors}
    if dims is not None and blocks.keys() != dims.keys():
        raise InputError(
            f"The {name} vectors come from the encoders {', '.join(blocks)}, but must come from {', '.join(dims)}. Pass"
            " a mapping from the name of each required encoder to an array of vectors."
        )
    dims = dims or {}
    views = {key: to_rows(block, key, dims.get(key), keep_sparse) for key, block in blocks.items()}
    counts = [row_count(block) for block in views.values()]
    if len(set(counts)) != 1:
        listed = ", ".join(f"{key} has {count}" for key, count in zip(views, counts, strict=True))
        raise InputError(
            f"The encoders have different numbers of {name} vectors: {listed}. Pass the same number for each."
        )
    return views


def to_dense(block: Block) -> np.ndarray:
    """Return dense or sparse vectors as a dense array (n, d)."""
    return block if isinstance(block, np.ndarray) else block.toarray()


def row_count(block: Block) -> int:
    """Return the number of vectors n in dense or sparse vectors (n, d)."""
    return _shape(block)[0]


def _shape(block: Block) -> tuple[int, ...]:
    shape = block.shape
    assert shape is not None  # SciPy's stubs allow a matrix without a shape
    return shape


def to_array(vectors: ArrayLike, name: str) -> np.ndarray:
    """Return real numbers as a float32 array of any shape.

    A column of arrays, as a data frame may contain, becomes a matrix. Masked values become NaN, and numbers too large
    for float32 become infinite. Raises InputError if the values are not real numbers. `name`, such as image, says in
    the message which vectors are wrong.
    """
    try:
        masked = isinstance(vectors, np.ma.MaskedArray)
        array = np.ma.filled(vectors.astype(np.float32), np.nan) if masked else to_numpy(vectors)
        array = np.stack(list(array)) if array.dtype == object and len(array) else array
        if array.dtype.kind in NUMBERS + "O":
            with np.errstate(over="ignore"):
                return np.ascontiguousarray(array, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"The {name} vectors are not a table of numbers ({error}). Pass real numbers.") from error
    raise InputError(f"The {name} vectors have the dtype {array.dtype}. Pass real numbers.")


def _not_finite(rows: Block) -> np.ndarray:
    """Return the row numbers (k,) of the vectors that contain NaN or infinity, in ascending order."""
    if isinstance(rows, sparse.csr_array):
        return np.unique(rows.tocoo().row[~np.isfinite(rows.data)])
    with np.errstate(invalid="ignore"):
        return np.flatnonzero(
            ~np.isfinite(rows.sum(axis=1, dtype=np.float64))
        )  # A sum in float64 is finite if and only if all float32 terms are.

"""Rows of several matrices side by side, sparse and dense, without a copy."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # whose parts it imports when they are used: dense views do without

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class Columns:
    """Matrices `parts`, each (n, d_k), dense or sparse, of numpy or of torch: one view of d columns."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = tuple(parts)
        self.shape = (self.parts[0].shape[0], sum(part.shape[1] for part in self.parts))

    def __getitem__(self, rows: Any) -> "Columns":
        """The rows `rows`, a slice or an array."""
        return self.map(lambda part: part[rows])

    def map(self, function: Callable[[Any], Any]) -> "Columns":
        """`function` of each part."""
        return Columns([function(part) for part in self.parts])

    def __matmul__(self, matrix: Any) -> Any:
        """(n, c): the product with `matrix` (d, c)."""
        return sum(part @ matrix[columns] for columns, part in spans(self))


Rows = "np.ndarray | csr_array | Columns"
"""Images (n, D) dense, or sentences (n, d) sparse, dense, or both side by side."""


def is_sparse(part: Any) -> bool:
    """Whether a matrix of numpy or scipy is sparse."""
    return not isinstance(part, np.ndarray)


def parts_of(rows: Any) -> Sequence[Any]:
    """The matrices that `rows` consist of, from left to right."""
    return rows.parts if isinstance(rows, Columns) else (rows,)


def spans(rows: Any) -> Iterator[tuple[slice, Any]]:
    """Each matrix with its columns."""
    start = 0
    for part in parts_of(rows):
        yield slice(start, start + part.shape[1]), part
        start += part.shape[1]


def side_by_side(parts: Sequence[Any]) -> Any:
    """`parts` as one view; a single one as it is."""
    return parts[0] if len(parts) == 1 else Columns(parts)


def map_parts(rows: Rows, function: Callable[[Any], Any]) -> Rows:
    """`function` of each matrix, side by side."""
    return side_by_side([function(part) for part in parts_of(rows)])


def stack_blocks(blocks: Sequence[Rows]) -> Rows:
    """The rows of all `blocks`, one after another."""
    return side_by_side([_stacked(parts) for parts in zip(*map(parts_of, blocks), strict=True)])


def _stacked(parts: Sequence[Any]) -> Any:
    return scipy.sparse.vstack(parts, format="csr") if is_sparse(parts[0]) else np.concatenate(parts)


def cross(rows: Rows, other: np.ndarray) -> np.ndarray:
    """(d, c): rows' other, for `other` (n, c)."""
    return np.concatenate([part.T @ other for part in parts_of(rows)])


def one_matrix(rows: Rows) -> "np.ndarray | csr_array":
    """The same values in one matrix, which is sparse where a part of it is."""
    parts = parts_of(rows)
    if len(parts) == 1:
        return parts[0]
    if any(map(is_sparse, parts)):
        return scipy.sparse.hstack([scipy.sparse.csr_array(part) for part in parts], format="csr")
    return np.concatenate(parts, axis=1)


def as_sparse(rows: Rows) -> "csr_array":
    """The same values in one sparse matrix."""
    return scipy.sparse.csr_array(one_matrix(rows))

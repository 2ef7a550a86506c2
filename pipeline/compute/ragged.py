"""Rows of different lengths in one array: words of sentences, nodes of trees, regions of images."""

from collections.abc import Sequence
from dataclasses import Field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np


class Ragged:
    """The base class of n rows that have different numbers of values, such as sentences of words.

    A subclass is a dataclass. Its field `offsets` (n + 1,) int64 begins with 0 and never decreases. All other fields
    are columns (total, ...), which are arrays, tensors or None. They have the values of all rows one after another: row
    i has the values `column[offsets[i] : offsets[i + 1]]`. Columns that are named in `ONE_PER_ROW` are (n, ...)
    instead.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    ONE_PER_ROW: ClassVar[tuple[str, ...]] = ()
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """The number of values in each row, as (n,)."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> np.ndarray:
        """The number of the row to which each value belongs, as (total,)."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def numbers(self) -> np.ndarray:
        """The position of each value within its row, from 0, as (total,)."""
        return runs(np.zeros(len(self), np.int64), self.lengths)

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Return the positions that the values of some rows have in the columns, one row after another, as (total,).

        `rows` (k,) has the numbers of these rows.
        """
        return runs(self.offsets[:-1][rows], self.lengths[rows])

    def take(self, rows: np.ndarray) -> Self:
        """Return the rows with the numbers `rows` (k,), in this order, as a copy. A row may be taken twice."""
        # The row numbers are copied, because torch does not accept a view with negative strides, such as `rows[::-1]`.
        rows = np.array(rows)
        return self._select(self.positions(rows), rows, offsets_of(self.lengths[rows]))

    def between(self, start: int, stop: int) -> Self:
        """Return the rows `start` to `stop` - 1. Their columns are views, not copies."""
        first = self.offsets[start]
        last = self.offsets[stop]
        return self._select(slice(first, last), slice(start, stop), self.offsets[start : stop + 1] - first)

    def blocks(self, size: int) -> list[Self]:
        """Return all rows in order, in blocks of `size` rows. The last block may have fewer rows. If there are no rows,
        return one empty block."""
        return [self.between(start, min(start + size, len(self))) for start in range(0, max(1, len(self)), size)]

    def split(self, name: str) -> list[np.ndarray]:
        """Return the values of the column `name`, which must be an array, as one array for each row. The arrays are
        views, and the array of a row without values is empty."""
        return np.split(getattr(self, name), self.offsets[1:-1])[: len(self)]

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Join the rows of all `parts`, part after part. There must be at least one part, the columns must be arrays,
        and all parts must have the same columns."""
        offsets = offsets_of(np.concatenate([part.lengths for part in parts]))
        columns = {name: [getattr(part, name) for part in parts] for name in parts[0].columns()}
        return replace(parts[0], offsets=offsets, **{name: np.concatenate(own) for name, own in columns.items()})

    def columns(self) -> dict[str, Any]:
        """Return the columns that are not None, as name -> column. `offsets` is not a column."""
        columns = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "offsets"}
        return {name: column for name, column in columns.items() if column is not None}

    def _select(self, positions: np.ndarray | slice, rows: np.ndarray | slice, offsets: np.ndarray) -> Self:
        columns = {
            name: column[rows if name in self.ONE_PER_ROW else positions] for name, column in self.columns().items()
        }
        return replace(self, offsets=offsets, **columns)


def offsets_of(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the offsets (n + 1,) int64 of n rows: the start of each row, followed by the end of the last row.

    `lengths` (n,) has the number of values in each row.
    """
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def runs(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return k runs of consecutive whole numbers, one run after another, as one array (total,).

    Run i has `lengths[i]` numbers and begins with the number `starts[i]`.
    """
    return np.arange(lengths.sum()) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)


def divides(offsets: np.ndarray | None, rows: int, total: int | None) -> bool:
    """Return whether `offsets` are valid offsets of `rows` rows with `total` values together.

    Valid offsets are signed integers (rows + 1,) that begin with 0, never decrease, and end with `total`. If `total` is
    None, they may end with any number. The result is false if `offsets` is None.
    """
    if offsets is None or offsets.shape != (rows + 1,) or offsets.dtype.kind != "i":
        return False
    return offsets[0] == 0 and bool((np.diff(offsets) >= 0).all()) and total in (None, offsets[-1])

"""Rows of different lengths in one array: words of sentences, nodes of trees, regions of images."""

from collections.abc import Sequence
from dataclasses import Field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np


class Ragged:
    """n rows of different lengths. Row i of each column is `column[offsets[i] : offsets[i + 1]]`.

    A subclass is a dataclass with the field `offsets` (n + 1,) int64, which begins with 0 and never falls, and with
    columns (total, ...), arrays or tensors. Columns named in `ONE_A_ROW` are (n, ...) instead. A column may be None.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    ONE_A_ROW: ClassVar[tuple[str, ...]] = ()
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """The length of each row (n,)."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> np.ndarray:
        """The row of each value (total,)."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def numbers(self) -> np.ndarray:
        """The position of each value in its row (total,), from 0."""
        return runs(np.zeros(len(self), np.int64), self.lengths)

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Return the positions of the values of `rows` (k,), row after row."""
        return runs(self.offsets[:-1][rows], self.lengths[rows])

    def take(self, rows: np.ndarray) -> Self:
        """Return the `rows` (k,), in that order. A row may come twice."""
        rows = np.array(rows)  # torch takes no reversed view
        return self._select(self.places(rows), rows, offsets_of(self.lengths[rows]))

    def between(self, start: int, stop: int) -> Self:
        """Return the rows `start` to `stop` - 1, without a copy."""
        first, last = self.offsets[start], self.offsets[stop]
        return self._select(slice(first, last), slice(start, stop), self.offsets[start : stop + 1] - first)

    def blocks(self, size: int) -> list[Self]:
        """Return all rows in blocks of at most `size` rows, or one empty block if there are no rows."""
        return [self.between(at, min(at + size, len(self))) for at in range(0, max(1, len(self)), size)]

    def split(self, name: str) -> list[np.ndarray]:
        """Return the values of each row in the column `name`."""
        return np.split(getattr(self, name), self.offsets[1:-1])[: len(self)]

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all `parts`, at least one, whose columns are arrays."""
        offsets = offsets_of(np.concatenate([part.lengths for part in parts]))
        columns = {name: [getattr(part, name) for part in parts] for name in parts[0].columns()}
        return replace(parts[0], offsets=offsets, **{name: np.concatenate(own) for name, own in columns.items()})

    def columns(self) -> dict[str, Any]:
        """Return every column that is not None, by name."""
        columns = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "offsets"}
        return {name: column for name, column in columns.items() if column is not None}

    def _select(self, positions: np.ndarray | slice, rows: np.ndarray | slice, offsets: np.ndarray) -> Self:
        columns = {
            name: column[rows if name in self.ONE_A_ROW else positions] for name, column in self.columns().items()
        }
        return replace(self, offsets=offsets, **columns)


def offsets_of(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the offsets (n + 1,) int64 of n rows of these `lengths`: each row's beginning, and the last row's end."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def runs(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the numbers start, start + 1, ... of each of k runs, one run after another (total,)."""
    return np.arange(lengths.sum()) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)


def divides(offsets: np.ndarray | None, rows: int, total: int | None) -> bool:
    """Return whether `offsets` divide `total` values (None: any number) into `rows` rows."""
    if offsets is None or offsets.shape != (rows + 1,) or offsets.dtype.kind != "i":
        return False
    return offsets[0] == 0 and bool((np.diff(offsets) >= 0).all()) and total in (None, offsets[-1])

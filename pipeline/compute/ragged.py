"""Rows of different lengths, one after another: words of sentences, nodes of trees, regions of images."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import numpy as np


class Ragged:
    """n rows; of each column, row i is `column[offsets[i] : offsets[i + 1]]`.

    A subclass is a dataclass with the field `offsets` (n + 1,) int64, which begins with 0 and never falls, and with
    columns (total, ...), arrays or tensors. Those named in `ONE_A_ROW` are (n, ...) instead. A column may be None.
    """

    ONE_A_ROW: ClassVar[tuple[str, ...]] = ()
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(n,)"""
        return np.diff(self.offsets)

    @property
    def owners(self) -> np.ndarray:
        """(total,) the row that each value is of."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def numbers(self) -> np.ndarray:
        """(total,) each value's place in its row, from 0."""
        return runs(np.zeros(len(self), np.int64), self.lengths)

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Where the values of `rows` (k,) stand, row after row."""
        return runs(self.offsets[:-1][rows], self.lengths[rows])

    def take(self, rows: np.ndarray) -> Self:
        """The `rows` (k,), in that order; one may come twice."""
        rows = np.array(rows)  # torch takes no reversed view
        return self._select(self.places(rows), rows, offsets_of(self.lengths[rows]))

    def between(self, start: int, stop: int) -> Self:
        """The rows `start` to `stop` - 1, not copied."""
        first, last = self.offsets[start], self.offsets[stop]
        return self._select(slice(first, last), slice(start, stop), self.offsets[start : stop + 1] - first)

    def blocks(self, size: int) -> list[Self]:
        """All rows, at most `size` in a block; one empty block where there are none."""
        return [self.between(at, min(at + size, len(self))) for at in range(0, max(1, len(self)), size)]

    def split(self, name: str) -> list[np.ndarray]:
        """Of the column `name`, that of each row."""
        return np.split(getattr(self, name), self.offsets[1:-1])[: len(self)]

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """The rows of all `parts`, at least one, of arrays."""
        offsets = offsets_of(np.concatenate([part.lengths for part in parts]))
        columns = {name: [getattr(part, name) for part in parts] for name in parts[0].columns()}
        return replace(parts[0], offsets=offsets, **{name: np.concatenate(own) for name, own in columns.items()})

    def columns(self) -> dict[str, Any]:
        """Every column that is there, by name."""
        columns = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "offsets"}
        return {name: column for name, column in columns.items() if column is not None}

    def _select(self, places: np.ndarray | slice, rows: np.ndarray | slice, offsets: np.ndarray) -> Self:
        columns = {name: column[rows if name in self.ONE_A_ROW else places] for name, column in self.columns().items()}
        return replace(self, offsets=offsets, **columns)


def offsets_of(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """(n + 1,) int64 where each of n rows of such `lengths` begins, and where the last ends."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def runs(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(total,) the numbers start, start + 1, ... of each of k runs, one run after another."""
    return np.arange(lengths.sum()) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)


def divides(offsets: np.ndarray | None, rows: int, total: int | None) -> bool:
    """Whether `offsets` divide `total` values (None: as many as they say) into `rows` rows."""
    if offsets is None or offsets.shape != (rows + 1,) or offsets.dtype.kind != "i":
        return False
    return offsets[0] == 0 and bool((np.diff(offsets) >= 0).all()) and total in (None, offsets[-1])

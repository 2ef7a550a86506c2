"""A table in several Parquet files, read by row."""

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_tables import with_columns
from pipeline.errors import IntegrityError
from pipeline.storage.reading import REMEDY
from pipeline.storage.tables import PackedTable


class ChainedTables:
    """The tables that `open_file(number)` gives, with `rows[number]` rows each, one after another, as one PackedTable;
    a file is opened when one of its rows is asked for. `file(number)` is one of them. The last file has all columns;
    one that another file lacks is null there.

    Raises IntegrityError for a file with another number of rows, or with a column that the last one has not.
    """

    def __init__(self, open_file: Callable[[int], PackedTable], rows: Sequence[int]) -> None:
        self._open, self._rows, self._ends = open_file, rows, list(itertools.accumulate(rows))
        self.num_rows: int = self._ends[-1]
        self.file = cache(self._checked)

    @property
    def schema(self) -> pa.Schema:
        return self.file(len(self._rows) - 1).schema

    @property
    def path(self) -> Path:
        return self.file(0).path

    def _checked(self, number: int) -> PackedTable:
        table = self._open(number)
        last = number == len(self._rows) - 1
        if table.num_rows != self._rows[number] or not (last or set(table.schema) <= set(self.schema)):
            raise IntegrityError(f"{table.path} is not the table that its card tells of; {REMEDY}")
        return table

    def files(self) -> Iterator[PackedTable]:
        """One after another."""
        return map(self.file, range(len(self._rows)))

    def unpack(self) -> pa.Table:
        return pa.concat_tables([self.schema.empty_table(), *self.groups()])

    def groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """All rows in order, of all columns or some, a few thousand at a time."""
        schema = pa.schema([self.schema.field(name) for name in columns or self.schema.names])
        for number in range(len(self._rows)):
            own = [name for name in schema.names if name in self.file(number).schema.names]
            yield from (with_columns(group, schema) for group in self.file(number).groups(own))

    def records(self, rows: Iterable[int]) -> list[dict[str, Any]]:
        """Some rows, in the given order."""
        rows, found, nothing = [int(row) for row in rows], [], dict.fromkeys(self.schema.names)
        for number, own in itertools.groupby(rows, lambda row: bisect.bisect_right(self._ends, row)):
            start = self._ends[number] - self._rows[number]
            found += [nothing | one for one in self.file(number).records(row - start for row in own)]
        return found

    def find(self, column: str, values: np.ndarray) -> np.ndarray:
        """(k,) the rows whose `column` has one of the whole numbers `values`."""
        found = [self.file(number).find(column, values) for number in range(len(self._rows))]
        starts = [end - rows for end, rows in zip(self._ends, self._rows, strict=True)]
        return np.concatenate([start + own for start, own in zip(starts, found, strict=True)])

"""The tables of several bundles, one after another, read by row."""

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_tables import with_columns
from pipeline.errors import UsageError
from pipeline.storage.sources import BUNDLE
from pipeline.storage.tables import PackedTable


class ChainedTables:
    """Several PackedTables one after another, with the interface of one.

    `shifts[i]` (column -> number) is added to the ids of `tables[i]`, so that no two rows have the same, and the column
    `bundle` says which table has the row. A column that a table lacks is null there. Raises UsageError for a column of
    types that cannot be reconciled.
    """

    def __init__(self, tables: Sequence[PackedTable], shifts: Sequence[Mapping[str, int]]) -> None:
        self.tables, self._shifts = tables, shifts
        self._ends = list(itertools.accumulate(table.num_rows for table in tables))
        own = [pa.schema([field for field in table.schema if field.name != BUNDLE]) for table in tables]
        try:
            schema = pa.unify_schemas(own, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            names = " and ".join(str(table.path) for table in tables)
            raise UsageError(f"{names} have a column of different types ({error}); search them one by one") from error
        self.schema: pa.Schema = schema.append(pa.field(BUNDLE, pa.int64()))

    @property
    def num_rows(self) -> int:
        return self._ends[-1]

    @property
    def path(self) -> Path:
        return self.tables[0].path

    def unpack(self) -> pa.Table:
        return pa.concat_tables([self.schema.empty_table(), *self.groups()])

    def groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """All rows in order, of all columns or some, a few thousand at a time."""
        schema = pa.schema([self.schema.field(name) for name in columns or self.schema.names])
        for number, table in enumerate(self.tables):
            stored = [name for name in schema.names if name in table.schema.names and name != BUNDLE]
            for group in table.groups(stored or table.schema.names[:1]):
                for name, shift in self._shifts[number].items():
                    if shift and name in group.column_names:
                        ids = pa.array(group[name].to_numpy() + shift)
                        group = group.set_column(group.column_names.index(name), name, ids)
                if BUNDLE in schema.names:
                    group = group.append_column(BUNDLE, pa.array(np.full(group.num_rows, number)))
                yield with_columns(group, schema)

    def records(self, rows: Iterable[int]) -> list[dict[str, Any]]:
        """Some rows, in the given order."""
        records = []
        for number, chosen in itertools.groupby(map(int, rows), lambda row: bisect.bisect_right(self._ends, row)):
            first = self._ends[number] - self.tables[number].num_rows
            for record in self.tables[number].records(row - first for row in chosen):
                ids = {name: record[name] + shift for name, shift in self._shifts[number].items()}
                records.append({**dict.fromkeys(self.schema.names), **record, **ids, BUNDLE: number})
        return records

    def find(self, column: str, values: np.ndarray) -> np.ndarray:
        """(k,) the rows whose `column` has one of the whole numbers `values`."""
        rows = [
            table.find(column, values - shifts.get(column, 0)) + end - table.num_rows
            for table, shifts, end in zip(self.tables, self._shifts, self._ends, strict=True)
        ]
        return np.concatenate(rows)

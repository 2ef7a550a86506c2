"""Tables that are unpacked row by row, against the whole."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import IntegrityError
from pipeline.storage.tables import GROUP_ROWS, PackedTable, to_parquet


def test_some_rows_are_those_of_the_whole_table() -> None:
    count = 2 * GROUP_ROWS + 5
    table = pa.table({"image_id": np.arange(count), "path": [f"{i}.jpg" if i % 7 else None for i in range(count)]})
    packed = PackedTable(to_parquet(table), Path("images.parquet"))
    assert packed.num_rows == count and packed.unpack().equals(table)
    rows = np.array([count - 1, 0, GROUP_ROWS, GROUP_ROWS - 1, 7, 7])
    assert packed.records(rows) == table.take(rows).to_pylist()
    assert packed.records([]) == []


def test_larger_groups_than_ours_are_refused() -> None:
    pq.write_table(pa.table({"image_id": np.arange(GROUP_ROWS + 1)}), sink := pa.BufferOutputStream())
    with pytest.raises(IntegrityError, match=r"images\.parquet was not written by this project"):
        PackedTable(sink.getvalue(), Path("images.parquet"))

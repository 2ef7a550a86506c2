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


def test_a_text_that_stands_in_many_rows_counts_in_each() -> None:
    once = pa.array(["x" * (1 << 20)])
    for rows, refused in ((100, False), (300, True)):
        text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), once)
        table, sink = pa.table({"id": np.arange(rows), "text": text}), pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", store_schema=False)
        packed = PackedTable(data := sink.getvalue().to_pybytes(), Path("x.parquet"))
        assert len(data) < 10_000
        for read in (lambda one=packed: one.records([7]), packed.unpack, lambda one=packed: list(one.groups(["text"]))):
            if refused:
                with pytest.raises(IntegrityError, match="x.parquet .*unpack to"):
                    read()
            else:
                read()
        assert len(list(packed.groups(["id"]))) == 1

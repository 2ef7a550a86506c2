"""Tables that are unpacked one row group at a time are compared with the whole table."""

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import IntegrityError
from pipeline.storage import tables
from pipeline.storage.card import Modality
from pipeline.storage.index_folder import COLUMNS, require_plain_rows
from pipeline.storage.index_shard import IndexShard
from pipeline.storage.tables import GROUP_ROWS, PackedTable, to_parquet


def test_selected_rows_equal_the_rows_of_the_whole_table() -> None:
    count = 2 * GROUP_ROWS + 5
    table = pa.table({"image_id": np.arange(count), "path": [f"{i}.jpg" if i % 7 else None for i in range(count)]})
    packed = PackedTable(to_parquet(table), Path("images.parquet"))
    assert packed.num_rows == count and packed.unpack().equals(table)
    rows = np.array([count - 1, 0, GROUP_ROWS, GROUP_ROWS - 1, 7, 7])
    assert packed.records(rows) == table.take(rows).to_pylist()
    assert packed.records([]) == []
    for names in (["path"], ["path", "image_id"]):
        assert pa.concat_tables(packed.groups(names)).equals(table.select(names))


@pytest.mark.parametrize("step", [1, 3])
def test_rows_are_found_by_any_of_their_ids(step: int) -> None:
    """The ids include the smallest and the largest id of each row group, and are searched one at a time and all
    together. Ids that are not in any row are not found."""
    count = 2 * GROUP_ROWS + 5
    ids = 7 + step * np.arange(count)
    packed = PackedTable(to_parquet(pa.table({"image_id": ids})), Path("images.parquet"))
    edges = [0, 1, GROUP_ROWS - 1, GROUP_ROWS, 2 * GROUP_ROWS - 1, 2 * GROUP_ROWS, count - 1]
    for rows in [*([row] for row in edges), edges]:
        np.testing.assert_array_equal(packed.find("image_id", ids[rows[::-1]]), rows)
    absent = np.array([6, 7 + step * count, -1, *([8] if step > 1 else [])])
    assert not len(packed.find("image_id", absent)) and not len(packed.find("image_id", ids[:0]))
    np.testing.assert_array_equal(packed.find("image_id", np.append(absent, ids[GROUP_ROWS - 1])), [GROUP_ROWS - 1])


def test_groups_that_unpack_to_too_much_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of four groups unpacks to 8 MB of one text, which a dictionary stores once. The limit of the table is 20 MB,
    so one group can be read, but not the whole table."""
    count = 4 * GROUP_ROWS
    text = "x" * 1000
    data = to_parquet(pa.table({"image_id": np.arange(count), "text": [text] * count}))
    monkeypatch.setattr(tables, "SPARE_BYTES", 20_000_000 - tables.MAX_UNPACKED_RATIO * len(data))
    packed = PackedTable(data, Path("images.parquet"))
    group = next(packed.groups())
    assert 8_000_000 < group.nbytes < 20_000_000 and packed.records([count - 1])[0]["text"] == text
    with pytest.raises(IntegrityError, match=r"images\.parquet would unpack to 2\d,\d{3},\d{3} bytes"):
        packed.unpack()


def test_groups_without_rows_are_skipped() -> None:
    table = pa.table({"image_id": np.arange(5), "path": list("abcde")})
    with pq.ParquetWriter(sink := pa.BufferOutputStream(), table.schema) as writer:
        for part in (table[:0], table[:2], table[:0], table[2:], table[:0]):
            writer.write_table(part, row_group_size=5)
    packed = PackedTable(sink.getvalue(), Path("images.parquet"))
    assert packed.unpack().equals(table) and packed.bounds("image_id") == (0, 4)
    assert packed.records([4, 0]) == table.take([4, 0]).to_pylist()
    assert packed.find("image_id", np.array([1, 4])).tolist() == [1, 4]


def test_text_that_is_not_unicode_is_refused_when_it_is_read() -> None:
    texts = pa.array([b"a dog", b"a c\xfft"]).view(pa.string())
    packed = PackedTable(to_parquet(pa.table({"text": texts})), Path("images.parquet"))
    with pytest.raises(IntegrityError, match=r"images\.parquet is not a readable Parquet file \(.*UTF8"):
        packed.records([1])


def test_groups_larger_than_jointspace_writes_are_refused() -> None:
    pq.write_table(pa.table({"image_id": np.arange(GROUP_ROWS + 1)}), sink := pa.BufferOutputStream())
    with pytest.raises(IntegrityError, match=r"images\.parquet was not written by jointspace"):
        PackedTable(sink.getvalue(), Path("images.parquet"))


class ShardOfTables(IndexShard):
    """An index shard that only has the given tables, and no files."""

    def __init__(self, contents: dict[str, pa.Table]) -> None:
        self.contents = contents

    def packed_table(self, modality: Modality) -> PackedTable:
        path = Path(f"{modality}.parquet")
        return PackedTable(to_parquet(self.contents[modality]), path, partial(require_plain_rows, path))


@pytest.mark.parametrize("column", ["offset", "size", "image_id"])
def test_check_rows_refuses_the_numbers_that_reading_the_table_refuses(column: str) -> None:
    row = {"image_id": 0, "path": "a.tar", "split": "train", "sha256": "0" * 64, "member": "b.jpg"}
    rows = [{**row, "offset": 512, "size": 10}, {**row, "image_id": 1, "offset": 1024, "size": 10}]
    sentences = COLUMNS["sentences"].empty_table()
    ShardOfTables({"images": pa.Table.from_pylist(rows, COLUMNS["images"]), "sentences": sentences}).check_rows()
    rows[1][column] = -1
    shard = ShardOfTables({"images": pa.Table.from_pylist(rows, COLUMNS["images"]), "sentences": sentences})
    for read in (shard.check_rows, partial(shard.table, "images")):
        with pytest.raises(IntegrityError, match=f"images.parquet row 1: {column} is -1"):
            read()


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_a_time_beyond_the_calendar_is_refused_with_its_row(unit: str) -> None:
    year = {"s": 1, "ms": 1000, "us": 1_000_000}[unit] * 365 * 86_400
    times = pa.array([0, 7000 * year, 9000 * year], pa.timestamp(unit))
    packed = PackedTable(to_parquet(pa.table({"taken": times})), Path("images.parquet"))
    with pytest.raises(IntegrityError, match="row 2: the time in the column taken is not in the years 1 to 9999"):
        packed.records([2])
    nanoseconds = pa.table({"taken": pa.array([-(2**62), 2**62], pa.timestamp("ns"))})
    assert PackedTable(to_parquet(nanoseconds), Path("images.parquet")).unpack().num_rows == 2

"""Tests that Parquet tables that unpack to much more than their size are refused, and that this takes little memory."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

READ = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from pipeline.collections.formats import FORMATS
from pipeline.collections.intake import Intake
from pipeline.collections.records import Options
from pipeline.errors import InputError
for folder in sys.argv[1:]:
    try:
        Intake(200).add(FORMATS["table"](Path(folder), Options({}, {}, "train")))
    except InputError as error:
        print("refused:", error)
    else:
        print("accepted")
"""
REPETITIONS = 10_000


def repeated(value: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [value])


def hostile() -> dict[str, dict]:
    """Return the columns of tables that must be refused. The key of each table is a part of the expected message."""
    texts = repeated("A dog .", 10_000_000)
    end = np.array([0, 10_000_000], np.int32)
    return {
        "rows 1 to 8192 have 8192032768 bytes in one column": {
            "file": [f"{row}.jpg" for row in range(REPETITIONS)],
            "sentence": repeated("x" * 1_000_000, REPETITIONS),
        },
        "there is not enough memory": {
            "file": [f"{row}.jpg" for row in range(REPETITIONS)],
            **{f"column {number}": repeated("x" * 30_000, REPETITIONS) for number in range(40)},
        },
        "rows 1 to 1 have lists with 10000000 values": {
            "file": ["a.jpg"],
            "sentence": pa.ListArray.from_arrays(end, texts),
        },
        "declares 10000000 rows, but has only ": {"file": repeated("a.jpg", len(texts)), "sentence": texts},
    }


def test_tables_that_unpack_to_more_than_a_file_can_hold_are_refused(tmp_path: Path) -> None:
    tables = {tmp_path / str(number): pair for number, pair in enumerate(hostile().items())}
    for folder, (_, columns) in tables.items():
        folder.mkdir()
        pq.write_table(pa.table(columns), folder / "t.parquet", compression="zstd", store_schema=False)
        assert (folder / "t.parquet").stat().st_size < 1_000_000
    child = subprocess.run([sys.executable, "-c", READ, *tables], capture_output=True, text=True, timeout=300)
    for line, (folder, (said, _)) in zip(child.stdout.splitlines(), tables.items(), strict=True):
        assert line.startswith(f"refused: {folder / 't.parquet'}") and said in line, child.stderr[-2000:]


def test_a_table_that_crashes_its_reader_is_refused(tmp_path: Path, gather, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that a table is refused if its trial ends the process. The end is imitated, because not all files on which
    pyarrow crashes are known."""
    monkeypatch.setattr("pipeline.collections.formats.rows._exhaust", end_process)
    pq.write_table(pa.table({"file": ["a.jpg"], "sentence": ["A dog ."]}), tmp_path / "t.parquet")
    with pytest.raises(Exception, match=r"t\.parquet crashed the process that read it"):
        gather(tmp_path, "table")


def end_process(*_: object) -> None:
    os.abort()

"""Parquet tables that hold far more than their size: refused in a sentence, in little memory."""

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
try:
    Intake(200).add(FORMATS["table"](Path(sys.argv[1]), Options({}, {}, "train")))
except InputError as error:
    print("refused:", error)
else:
    print("accepted")
"""
MANY = 10_000


def repeated(value: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [value])


def names(rows: int) -> list[str]:
    return [f"{row}.jpg" for row in range(rows)]


def one_text_in_every_row() -> dict:
    return {"file": names(MANY), "sentence": repeated("x" * 1_000_000, MANY)}


def a_list_without_end() -> dict:
    texts = repeated("A dog .", 10_000_000)
    return {"file": ["a.jpg"], "sentence": pa.ListArray.from_arrays(np.array([0, len(texts)], np.int32), texts)}


def rows_without_end() -> dict:
    return {"file": repeated("a.jpg", 10_000_000), "sentence": repeated("A dog .", 10_000_000)}


HOSTILE = {
    "one text in every row": (one_text_in_every_row, "rows 1 to 8192 have 8192000000 bytes of text"),
    "a list without end": (a_list_without_end, "rows 1 to 1 have lists of 10000000 values"),
    "rows without end": (rows_without_end, "claims 10000000 rows in "),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_more_than_a_file_can_hold_is_refused(name: str, tmp_path: Path) -> None:
    make, said = HOSTILE[name]
    pq.write_table(pa.table(make()), tmp_path / "t.parquet", compression="zstd", store_schema=False)
    assert (tmp_path / "t.parquet").stat().st_size < 1_000_000
    child = subprocess.run([sys.executable, "-c", READ, tmp_path], capture_output=True, text=True, timeout=300)
    assert child.stdout.startswith(f"refused: {tmp_path / 't.parquet'}"), child.stdout + child.stderr[-2000:]
    assert said in child.stdout


def test_a_table_that_ends_its_reader_is_refused(tmp_path: Path, gather, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow has ended the process on damaged files before, and no test knows all of them."""
    monkeypatch.setattr("pipeline.collections.formats.rows._exhaust", end_process)
    pq.write_table(pa.table({"file": ["a.jpg"], "sentence": ["A dog ."]}), tmp_path / "t.parquet")
    with pytest.raises(Exception, match=r"t\.parquet ended the process that read it"):
        gather(tmp_path, "table")


def end_process(*_: object) -> None:
    os.abort()

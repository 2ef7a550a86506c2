"""Files that are whole by their sidecars and hostile all the same: they read other files, or claim what they lack.

Each is read in a child with 3 GB of memory and a time limit (confined.py); one that obeyed its header would die there.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.storage.commit import publish

Confined = Callable[[str, Path], tuple[int, str]]


@pytest.fixture(scope="module")
def confined() -> Iterator[Confined]:
    """Has a reader of confined.py read a file: the exit code of its child, and what it said."""
    program = [sys.executable, Path(__file__).with_name("confined.py")]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def ask(reader: str, path: Path) -> tuple[int, str]:
            process.stdin.write(json.dumps([reader, str(path)]) + "\n")
            process.stdin.flush()
            return tuple(json.loads(process.stdout.readline()))

        yield ask


def tensors(header: object, length: int | None = None, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def zeros(rows: int) -> bytes:
    """1 GB of one value, packed into a few kilobytes."""
    column = pa.array(np.zeros(rows, np.int64))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": column}), sink, compression="zstd", use_dictionary=False)
    return sink.getvalue().to_pybytes()


def repeats(rows: int) -> bytes:
    """The same of a dictionary of one value, of whose rows the file says next to nothing."""
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([0]))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": column}), sink, compression="zstd", row_group_size=rows)
    return sink.getvalue().to_pybytes()


def texts(rows: int, length: int) -> bytes:
    """One long text, many times, which a dictionary holds once."""
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array(["x" * length]))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": column}), sink, compression="zstd", store_schema=False)
    return sink.getvalue().to_pybytes()


HOSTILE = {
    "header of 2 to the 60.safetensors": lambda: tensors({}, 1 << 60),
    "64 GiB.safetensors": lambda: tensors({"x": {"dtype": "F32", "shape": [1 << 34], "data_offsets": [0, 1 << 36]}}),
    "overflow.safetensors": lambda: tensors(
        {"x": {"dtype": "F32", "shape": [1 << 62, 8], "data_offsets": [0, 4]}}, None, b"abcd"
    ),
    "1 GB in a few KB.parquet": lambda: zeros(1 << 27),
    "1 GB in a dictionary.parquet": lambda: repeats(1 << 27),
    "2 GB of one text.parquet": lambda: texts(1 << 13, 1 << 18),
    "footer of 4 GB.parquet": lambda: b"PAR1" + b"\xff\xff\xff\x7fPAR1",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_by_name(name: str, confined: Confined, tmp_path: Path) -> None:
    path = tmp_path / name
    rows = {"1 GB": 1 << 27, "2 GB": 1 << 13}.get(name[:4], 1)
    publish(path, HOSTILE[name](), kind="k", rows=rows, details={"settings": {}})
    code, said = confined("read", path)
    assert code == 0 and said.startswith("refused:") and name in said, (code, said)


FEATURES = {
    "4 PB": {"shape": (3, 1 << 48)},
    "12 GB of one value": {"shape": (3, 1 << 30), "chunks": (1, 1 << 26), "compression": "gzip"},
}


@pytest.mark.parametrize("claimed", FEATURES)
def test_features_from_elsewhere_that_claim_too_much_are_refused_by_name(
    claimed: str, confined: Confined, tmp_path: Path
) -> None:
    with h5py.File(path := tmp_path / "features.h5", "w") as file:
        file.create_dataset("x", dtype="f4", **FEATURES[claimed])
        file.create_dataset("names", data=["a.jpg", "b.jpg", "c.jpg"])
    assert path.stat().st_size < 100_000
    code, said = confined("import", path)
    assert code == 0 and said.startswith(f"refused: {path} claims "), (code, said)

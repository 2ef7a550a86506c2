"""Hostile files with valid commit records: they declare more data than they contain, or unpack to very much data.

test_forged_indexes.py measures how much memory a whole command needs for such a file.
"""

import json
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import InputError, IntegrityError
from pipeline.foreign.vectors import Source, open_foreign
from pipeline.storage.commit import publish
from pipeline.storage.parameters import read_parameters
from pipeline.storage.tables import read_table, to_parquet


def tensors(header: object, length: int | None = None, body: bytes = b"") -> bytes:
    """Return a safetensors file with this header. `length` replaces the true length of the header."""
    text = json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def table(column: pa.Array, **options: object) -> bytes:
    """Return a Parquet file with the column `x`."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": column}), sink, compression="zstd", **options)
    return sink.getvalue().to_pybytes()


def repeats(rows: int, value: object) -> pa.Array:
    """Return a column that repeats a value, which its dictionary stores once."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([value]))


HOSTILE = {
    "header of 2 to the 60.safetensors": lambda: tensors({}, 1 << 60),
    "64 GiB.safetensors": lambda: tensors({"x": {"dtype": "F32", "shape": [1 << 34], "data_offsets": [0, 1 << 36]}}),
    "overflow.safetensors": lambda: tensors(
        {"x": {"dtype": "F32", "shape": [1 << 62, 8], "data_offsets": [0, 4]}}, None, b"abcd"
    ),
    "256 MB in a dictionary.parquet": lambda: table(repeats(1 << 25, 0), row_group_size=1 << 25),
    "2 GB of one text.parquet": lambda: table(repeats(1 << 13, "x" * (1 << 18)), store_schema=False),
    "footer of 4 GB.parquet": lambda: b"PAR1" + b"\xff\xff\xff\x7fPAR1",
    "no footer.parquet": lambda: bytes(to_parquet(pa.table({"x": [1]})))[:-5],
}
"""Name of a file -> the function that makes its bytes."""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_by_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    publish(path, HOSTILE[name](), kind="k", rows=1, details={"settings": {}})
    with pytest.raises(IntegrityError, match=name):
        (read_table if path.suffix == ".parquet" else read_parameters)(path, "k")


@pytest.mark.parametrize(
    "declared", [{"shape": (3, 1 << 48)}, {"shape": (3, 1 << 30), "chunks": (1, 1 << 26), "compression": "gzip"}]
)
def test_precomputed_features_that_declare_too_much_data_are_refused_by_name(declared: dict, tmp_path: Path) -> None:
    with h5py.File(path := tmp_path / "features.h5", "w") as file:
        file.create_dataset("x", dtype="f4", **declared)
        file.create_dataset("names", data=["a.jpg", "b.jpg", "c.jpg"])
    with pytest.raises(InputError, match=f"{path} declares "):
        open_foreign(Source(path, None, None))

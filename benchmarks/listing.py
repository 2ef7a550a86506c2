"""Measures how soon `ingest` knows its inputs, for a folder of tar shards and for a Parquet list of many rows.

    python benchmarks/listing.py [--tars 10000] [--rows 10000000] [--folder FOLDER]

The benchmark makes tar shards of one empty file each, and a table with two short columns, and prints a JSON line for
each of the two inputs. The line has wall-clock seconds, because another process opens Parquet files first. `form` is
the time in which `init` recognises the format. `state` is the time for describing the state of all files, from which
changes are noticed. `first` is the time until the first record has been read. The last key is the number `--records`,
and has the time until this number of records has been read.
"""

import argparse
import io
import json
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from interleave import parse_options

from pipeline.collections.detect import detect
from pipeline.collections.formats import FORMATS, describe_state
from pipeline.collections.records import Options

BATCH = 1 << 20
"""Number of rows of the table that are written at once."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tars", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="Folder for the files. [default: a temporary folder]")
    given = parse_options(parser, globals(), tars=3, rows=100, records=50)
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        measure("tars", given.tars, write_tars(Path(name, "tars"), given.tars), given.records)
        measure("rows", given.rows, write_rows(Path(name), given.rows), given.records)


def write_tars(folder: Path, count: int) -> Path:
    folder.mkdir()
    shard = io.BytesIO()
    with tarfile.open(fileobj=shard, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
    for number in range(count):
        (folder / f"{number:06d}.tar").write_bytes(shard.getvalue())
    return folder


def write_rows(folder: Path, count: int) -> Path:
    path = folder / "list.parquet"
    schema = pa.schema([("file", pa.string()), ("sentence", pa.string())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for start in range(0, count, BATCH):
            names = [f"{row}.jpg" for row in range(start, min(start + BATCH, count))]
            writer.write_table(pa.table([names, ["A dog ."] * len(names)], schema))
    return path


def measure(what: str, count: int, path: Path, records: int) -> None:
    form, found = timed(lambda: detect(path))
    state, _ = timed(lambda: describe_state(found.root, found.format, found.files))
    read = FORMATS[found.format](found.root, Options(found.files, found.columns, "train"))
    first, _ = timed(lambda: next(read))
    rest, _ = timed(lambda: deque(islice(read, records - 1), maxlen=0))
    figures = {"form": form, "state": state, "first": first, f"{records}": first + rest}
    print(json.dumps({what: count, **{name: round(value, 2) for name, value in figures.items()}}), flush=True)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    main()

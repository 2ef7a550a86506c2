"""Compares reading a float16 shard, in float32 blocks and in shuffled rows, with a plain program that uses h5py.

The command is `python benchmarks/shards.py`.
"""

import argparse
import tempfile
from pathlib import Path

from interleave import compare, parse_options, report

from pipeline.compute import runtime

runtime.configure()

import h5py  # noqa: E402  after the runtime is configured
import numpy as np  # noqa: E402
import torch  # noqa: E402, F401  to_float32 converts by torch if torch is loaded, as in the stages

from pipeline.compute.precision import to_float32  # noqa: E402
from pipeline.storage.shards import FEATURES, Shard, write_shard  # noqa: E402

ROWS = 20_480
DIM = 4096
BLOCK = 4096
BATCH = 128


def main() -> None:
    parse_options(argparse.ArgumentParser(description=__doc__), globals(), ROWS=256, DIM=32, BLOCK=64, BATCH=8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shard-00000.h5"
        features = np.random.default_rng(0).random((ROWS, DIM), dtype=np.float32).astype(np.float16)
        write_shard(path, FEATURES, {"features": features}, rows=ROWS)
        stream(path)
        gather(path)


def stream(path: Path) -> None:
    """Print the time for reading every block of the shard `path` into the same float32 buffer, as the stages do,
    compared with the time for reading the blocks by h5py. `gb_per_s` is the rate of the stages' way, in 10^9 bytes of
    float32.
    """
    shard = Shard(path, FEATURES)
    buffer = np.empty((BLOCK, DIM), np.float32)

    def ours() -> None:
        for start in range(0, ROWS, BLOCK):
            to_float32(shard["features"][start : start + BLOCK], buffer)

    with h5py.File(path) as file:
        dataset = file["features"]

        def plainly() -> None:
            for start in range(0, ROWS, BLOCK):
                dataset[start : start + BLOCK].astype("f4")

        result = compare("float16 shard to float32 blocks", ours, plainly, 7, runtime.threads())
    report({**result, "gb_per_s": ROWS * DIM * 4 / result["ours"] / 1e9})


def gather(path: Path) -> None:
    """Print the time for reading shuffled minibatches from the memory map of the shard `path`, compared with the time
    for reading the rows of the minibatches separately by h5py.
    """
    shard = Shard(path, FEATURES)
    batches = np.random.default_rng(1).permutation(ROWS)[: 16 * BATCH].reshape(16, BATCH)

    with h5py.File(path) as file:
        dataset = file["features"]
        result = compare(
            "shuffled minibatches over rows",
            lambda: [to_float32(shard["features"][rows]) for rows in batches],
            lambda: [np.stack([dataset[row].astype("f4") for row in rows]) for rows in batches],
            7,
            runtime.threads(),
        )
    report(result)


if __name__ == "__main__":
    main()

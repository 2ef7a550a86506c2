"""Fits normalized CCA to a million pairs of 4,096 dense and 3,000 sparse dimensions from shards on disk.

    python benchmarks/million_moments.py [--rows 1000000] [--folder million]

The benchmark makes shards with a fixed seed in the folder (8 GB in float16 for a million rows, kept for the next run).
A separate process then fits `ncca`: it checks the shards, reads, converts and sums them, and solves the problem once.
The output is a line for each new shard, and one JSON line with the seconds, the rows per second, the share of the speed
of the bare rank-k update, and the peak memory, which must not depend on the number of rows. The bare update is measured
in the same process, on 196,608 rows in memory.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
import torch  # noqa: E402, F401  to_float32 converts by torch if torch is loaded, which is fastest
from scipy import sparse  # noqa: E402
from scipy.linalg.blas import ssyrk  # noqa: E402
from threadpoolctl import threadpool_info  # noqa: E402

from pipeline.compute.precision import to_float32  # noqa: E402
from pipeline.models.linear.accumulation import MomentsAccumulator, ahead  # noqa: E402
from pipeline.models.linear.cca import CCASolver  # noqa: E402
from pipeline.models.linear.moments import BLOCK_ROWS  # noqa: E402
from pipeline.storage.commit import commit_path  # noqa: E402
from pipeline.storage.shards import (  # noqa: E402
    FEATURES,
    Shard,
    shard_path,  # noqa: E402
    write_shard,
)
from pipeline.storage.texts import VectorShard, write_vectors  # noqa: E402

DIM_X = 4096
DIM_Y = 3000
WORDS = 12
HIDDEN = 64
SHARD_ROWS = 1 << 15
DIMENSIONS = 96
FLOOR_BLOCKS = 48


def make_shards(folder: Path, rows: int) -> None:
    """Write `rows` pairs into shards in `folder`: the features (DIM_X) of an image, and the tf-idf vector (DIM_Y) of a
    sentence of WORDS words. The features look like features after a ReLU: about a quarter of the numbers is not zero.

    Each image has one of HIDDEN topics, and its sentence has the same topic. Shards that exist are kept.
    """
    shared = np.random.default_rng(0)
    mixing = shared.standard_normal((HIDDEN, DIM_X), np.float32) / 8
    noise = shared.standard_normal((BLOCK_ROWS, DIM_X), np.float32)
    topics = shared.permuted(np.tile(1 / np.arange(1, DIM_Y + 1), (HIDDEN, 1)), axis=1).cumsum(axis=1)
    topics /= topics[:, -1:]
    for number, start in enumerate(range(0, rows, SHARD_ROWS)):
        features = shard_path(folder / "features", number)
        tfidf = shard_path(folder / "tfidf", number)
        count = min(SHARD_ROWS, rows - start)
        if commit_path(tfidf).exists():
            continue
        rng = np.random.default_rng([1, number])
        topic = rng.integers(HIDDEN, size=count)
        hidden = rng.standard_normal((count, HIDDEN), np.float32)
        hidden[np.arange(count), topic] += 6
        x = np.empty((count, DIM_X), np.float16)
        for first in range(0, count, BLOCK_ROWS):
            block = hidden[first : first + BLOCK_ROWS] @ mixing
            block += np.roll(noise[: len(block)], int(rng.integers(DIM_X)), axis=1)
            x[first : first + BLOCK_ROWS] = np.maximum(block - 0.9, 0)
        spots = rng.random((count, WORDS))
        words = np.concatenate([np.searchsorted(topics[t], spots[i]) for i, t in enumerate(topic)])
        owners = np.repeat(np.arange(count), WORDS)
        y = sparse.csr_array((np.full(len(words), WORDS**-0.5, np.float32), (owners, words)), shape=(count, DIM_Y))
        print(json.dumps({"name": "making shards", "rows": start + count, "of": rows}), flush=True)
        ids = np.arange(start, start + count)
        write_shard(features, FEATURES, {"features": x, "image_id": ids}, rows=count)
        write_vectors(tfidf, y, ids, ids, encoder="tfidf")


def read_blocks(folder: Path, count: int) -> Iterator[tuple[np.ndarray, sparse.csr_array]]:
    """Yield the pairs of the first `count` shards in `folder`, in blocks: the features of some images as stored, and
    the vectors of the sentences of these images.
    """
    for number in range(count):
        features = Shard(shard_path(folder / "features", number), FEATURES)
        texts = VectorShard(shard_path(folder / "tfidf", number))
        for first in range(0, features.rows, BLOCK_ROWS):
            rows = slice(first, first + BLOCK_ROWS)
            yield features["features"][rows], texts.matrix[rows]


def measure_floor(block: np.ndarray) -> float:
    """Return the rows per second of the symmetric rank-k update alone, which is repeated with the same block in
    memory.
    """
    total = np.zeros((DIM_X, DIM_X), np.float32, order="F")
    start = time.perf_counter()
    for _ in range(FLOOR_BLOCKS):
        total = ssyrk(1.0, block.T, beta=1.0, c=total, overwrite_c=1)
    return FLOOR_BLOCKS * BLOCK_ROWS / (time.perf_counter() - start)


def fit(folder: Path, rows: int) -> dict[str, float]:
    """Time a fit of `ncca` to `rows` pairs, which reads the shards in `folder` once and solves the problem once, and
    time the rank-k update alone. Return the values of the output line, which the docstring of this module describes.
    """
    start = time.perf_counter()
    accumulator = MomentsAccumulator(DIM_X, DIM_Y, runtime.threads())
    cpu = time.process_time()
    block = np.empty((BLOCK_ROWS, DIM_X), np.float32)
    for stored, y in ahead(read_blocks(folder, -(-rows // SHARD_ROWS))):
        accumulator.add(to_float32(stored, block[: len(stored)]), y, np.arange(len(stored)))
    accumulated = time.perf_counter() - start
    directions = CCASolver(accumulator.result()).solve(1e-2, 1e-2, DIMENSIONS)
    seconds = time.perf_counter() - start
    cpu_over_wall = (time.process_time() - cpu) / seconds
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    floor = measure_floor(block)
    return {
        "rows": rows,
        "seconds": round(seconds, 2),
        "accumulate_seconds": round(accumulated, 2),
        "rows_per_second": round(rows / accumulated),
        "share_of_bare_rank_k": round(rows / accumulated / floor, 3),
        "peak_gib": round(peak, 2),
        "cpu_over_wall": round(cpu_over_wall, 2),
        "kernels": ", ".join(sorted({one["architecture"] for one in threadpool_info() if "architecture" in one})),
        "first_correlation": round(float(directions.values[0]), 4),
        "last_correlation": round(float(directions.values[-1]), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("million"))
    parser.add_argument("--fit-only", action="store_true", help="only fit, in this process, on existing shards")
    given = parser.parse_args()
    if given.fit_only:
        print(json.dumps({"name": "ncca of many pairs", **fit(given.folder, given.rows)}))
        return
    make_shards(given.folder, given.rows)
    command = [sys.executable, __file__, "--fit-only", "--rows", str(given.rows), "--folder", str(given.folder)]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()

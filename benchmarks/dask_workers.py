"""Compares two Dask workers with one worker, for computing the moments and the embeddings of many shards.

    python benchmarks/dask_workers.py [--shards 8] [--rows 4096] [--dim 2048] [--pairs 3]

Each worker has one thread. The output is one JSON line for the moments and one for the embeddings. `ours` is the time
with two workers, and `reference` is the time with one worker. Both clusters exist all the time and are used in turn.
`cpu_over_wall` is measured for the workers. A comparison is void if two workers together got less than 1.8 CPU cores.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from functools import partial
from operator import add
from pathlib import Path

from interleave import parse_options

from pipeline.compute import runtime

if __name__ == "__main__":  # Workers inherit the settings, and have imported numpy.
    runtime.configure(1)

import numpy as np  # noqa: E402
import psutil  # noqa: E402
from distributed import LocalCluster  # noqa: E402
from pairs import DIM_Y, make_pairs  # noqa: E402

from pipeline.compute.mapreduce import map_reduce  # noqa: E402
from pipeline.compute.precision import to_float32  # noqa: E402
from pipeline.models.linear.accumulation import MomentsAccumulator  # noqa: E402
from pipeline.models.linear.moments import (
    BLOCK_ROWS,  # noqa: E402
    Moments,  # noqa: E402
)
from pipeline.storage.shards import (  # noqa: E402
    EMBEDDINGS,
    FEATURES,
    Shard,
    shard_path,  # noqa: E402
    write_shard,
)
from pipeline.storage.texts import VectorShard, write_vectors  # noqa: E402

DIMENSIONS = 128


def sum_shard(folder: Path, number: int) -> Moments:
    """Return the moments of the shard `number` in `folder`: the sums of products of its features and tf-idf vectors,
    computed as the stage `accumulate` computes moments.
    """
    x = Shard(shard_path(folder / "features", number), FEATURES)["features"]
    y = VectorShard(shard_path(folder / "tfidf", number)).matrix
    accumulator = MomentsAccumulator(x.shape[1], DIM_Y, 1)
    for start in range(0, len(x), BLOCK_ROWS):
        block = to_float32(x[start : start + BLOCK_ROWS])
        accumulator.add(block, y[start : start + BLOCK_ROWS], np.arange(len(block)))
    return accumulator.result()


def embed_shard(folder: Path, number: int) -> int:
    """Multiply the features and tf-idf vectors of the shard `number` in `folder` by random matrices, scale the rows to
    unit length, and write them as a shard of embeddings. Return 1, so that the sum of the results is the number of
    shards.
    """
    x = Shard(shard_path(folder / "features", number), FEATURES)["features"]
    y = VectorShard(shard_path(folder / "tfidf", number)).matrix
    rng = np.random.default_rng(0)
    w, u = (rng.standard_normal((dim, DIMENSIONS), np.float32) for dim in (x.shape[1], DIM_Y))
    made = {}
    for name, vectors in (("images", to_float32(x) @ w), ("sentences", y @ u)):
        made[name] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    write_shard(shard_path(folder / "embeddings", number), EMBEDDINGS, made, rows=len(x))
    return 1


def make_shards(folder: Path, shards: int, rows: int, dim: int) -> None:
    x, y = make_pairs(rows)
    x = x[:, :dim].astype(np.float16)
    ids = np.arange(rows)
    for number in range(shards):
        path = shard_path(folder / "features", number)
        write_shard(path, FEATURES, {"features": np.roll(x, number, axis=1)}, rows=rows)
        path = shard_path(folder / "tfidf", number)
        write_vectors(path, y, ids, ids, encoder="tfidf")


def cpu_seconds(cluster: LocalCluster) -> float:
    times = [psutil.Process(worker.pid).cpu_times() for worker in cluster.workers.values()]
    return sum(spent.user + spent.system for spent in times)


def timed(cluster: LocalCluster, function, shards: int) -> tuple[float, float]:
    """Call `function` on the workers of the cluster with the number of each of `shards` shards, and add up the results.
    Return the wall seconds of all calls together, and the CPU seconds of the workers.
    """
    start = time.perf_counter()
    cpu = cpu_seconds(cluster)
    map_reduce(function, range(shards), add, cluster.scheduler_address)
    return time.perf_counter() - start, cpu_seconds(cluster) - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("--shards", 8), ("--rows", 4096), ("--dim", 2048), ("--pairs", 3)):
        parser.add_argument(name, type=int, default=value)
    given = parse_options(parser, globals(), shards=2, rows=64, dim=32, pairs=1)
    options = {"threads_per_worker": 1, "dashboard_address": None, "memory_limit": "2GiB"}
    with (
        tempfile.TemporaryDirectory() as name,
        LocalCluster(n_workers=2, **options) as two,
        LocalCluster(n_workers=1, **options) as one,
    ):
        folder = Path(name)
        make_shards(folder, given.shards, given.rows, given.dim)
        for what, function in (("moments", sum_shard), ("embedding", embed_shard)):
            work = partial(function, folder)
            timed(two, work, given.shards), timed(one, work, given.shards)
            runs = [(timed(two, work, given.shards), timed(one, work, given.shards)) for _ in range(given.pairs)]
            usage = statistics.median(cpu / wall for (wall, cpu), _ in runs)
            result = {
                "name": f"{what} on two Dask workers against one", "ours": statistics.median(a[0] for a, _ in runs),
                "reference": statistics.median(b[0] for _, b in runs),
                "ratio": statistics.median(b[0] / a[0] for a, b in runs), "pairs": given.pairs,
                "cpu_over_wall": usage, "cpu_over_wall_of_one": statistics.median(b[1] / b[0] for _, b in runs),
                "void": usage < 0.9 * min(2, os.cpu_count() or 1),
            }  # fmt: skip
            print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in result.items()}), flush=True)


if __name__ == "__main__":
    main()

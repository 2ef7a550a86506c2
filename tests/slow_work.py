"""Functions that take long, in a module that other processes can import by itself.

Each piece of their work leaves a file that names the process that began the piece.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

from pipeline.errors import UsageError
from pipeline.run import StageRun
from pipeline.run.stage import ShardJob
from stages.text import encode


def slow_encoding(run: StageRun, jobs: Iterator[ShardJob], encoder: str) -> Iterator[int]:
    """Encode the sentences of shards as the stage `encode_sentences` does, but take at least 0.1 seconds per shard.

    For each shard, a file in the folder `begun` of the run names the shard and the process. Each process also writes
    the values of CUDA_VISIBLE_DEVICES and OMP_NUM_THREADS and its number of BLAS threads into a file in the folder
    `told`. If the run has a file `refused`, shard 2 raises UsageError. The number of a finished shard is yielded late,
    when the next shard is finished or when the shards end.
    """
    begun = run.root / "begun"
    begun.mkdir(exist_ok=True)
    (run.root / "told").mkdir(exist_ok=True)

    def slowly() -> Iterator[ShardJob]:
        for job in jobs:
            (begun / f"{job.number}-{os.getpid()}-{time.monotonic_ns()}").touch()
            time.sleep(0.1)
            said = [os.environ.get(name, "none") for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")]
            counted = max(each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas")
            (run.root / "told" / str(os.getpid())).write_text(" ".join([*said, str(counted)]))
            if job.number == 2 and (run.root / "refused").exists():
                raise UsageError("shard 2 names its remedy")
            yield job

    before: list[int] = []
    for number in encode.encode_sentences.function(run, slowly(), encoder):
        yield from before
        before = [number]
    yield from before


slow_encoding = replace(encode.encode_sentences, function=slow_encoding)
slow_gpu_encoding = replace(slow_encoding, gpu=True)


def numbers(seed: int) -> np.ndarray:
    """Return 1,000 random numbers (float32). Their scale depends on the seed, so that the sum of the arrays of several
    seeds depends on the order of the arrays.
    """
    return np.random.default_rng(seed).standard_normal(1000).astype(np.float32) * 10.0 ** (seed % 7)


def linger(seed: int, folder: Path) -> np.ndarray:
    """Return `numbers(seed)` after a tenth of a second. Leave a file in `folder` that names the seed and the
    process.
    """
    (folder / f"{seed}-{os.getpid()}-{time.monotonic_ns()}").touch()
    time.sleep(0.1)
    return numbers(seed)

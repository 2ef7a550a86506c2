"""Work that takes long, in a module that other processes can import by itself.

Each piece of the work leaves a file that names the process that began it.
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
    """Encode shards as the stage does, but slowly. Each shard leaves a file that names the process that began it.

    Each process also writes its GPUs and its numbers of threads into the folder `told` of the run. If the run has a
    file `refused`, shard 2 raises UsageError. The number of a shard is yielded when the next shard is committed.
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
    """Return numbers whose sum depends on the order of the summands."""
    return np.random.default_rng(seed).standard_normal(1000).astype(np.float32) * 10.0 ** (seed % 7)


def linger(seed: int, folder: Path) -> np.ndarray:
    """Return `numbers(seed)` slowly, and leave a file that names the process that began the work."""
    (folder / f"{seed}-{os.getpid()}-{time.monotonic_ns()}").touch()
    time.sleep(0.1)
    return numbers(seed)

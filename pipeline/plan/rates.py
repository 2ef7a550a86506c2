"""How fast this machine is at the few things of which all stages consist, measured in seconds rather than looked up."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

SIDE = 1536
"""Of the matrices that are multiplied, for a third of a second on one slow core."""


@dataclass(frozen=True)
class Rates:
    """`images` a second through each encoder, decoding included (None: not measured); images that `ingest` can
    `inspect` and sentences that can be `encoded` a second; `flops` of products in single precision; seconds in which a
    process `starts`, with torch."""

    images: dict[str, float | None]
    inspected: float
    encoded: float
    flops: float
    starts: float


def rate(work: Callable[[], Iterable], count: int) -> float:
    """Things a second where `work()` yields something for each of `count` things, or for some of them together."""
    start = time.perf_counter()
    for _ in work():
        pass
    return count / (time.perf_counter() - start)


def extraction_rate(decoded: float, forward: float, processes: int, gpu: bool) -> float:
    """Images a second of an extraction, from images a second that one process decodes and that the network takes.

    A GPU waits for the decoders or they for it; on one processor they take turns.
    """
    decoded *= max(1, processes)
    return min(decoded, forward) if gpu else 1 / (1 / decoded + 1 / forward)


def measure_flops() -> float:
    """Operations a second of a product of two matrices in single precision, the better of two."""
    matrix = np.random.default_rng(0).standard_normal((SIDE, SIDE), np.float32)
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        matrix @ matrix.T
        seconds.append(time.perf_counter() - start)
    return 2 * SIDE**3 / min(seconds)


def measure_start(modules: Sequence[str] = ("torch", "pyarrow", "pydantic", "h5py")) -> float:
    """Seconds in which a process comes up with these modules."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "; ".join(f"import {name}" for name in modules)], check=True)
    return time.perf_counter() - start

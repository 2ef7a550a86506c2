"""How fast this machine is at the few operations of which all stages consist, measured in seconds."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SIDE = 1536
"""Of the matrices that are multiplied, for a third of a second on one slow core."""

TORCH_MODULES = ("torch", "pyarrow", "h5py", "pipeline.config.root")
LIGHT_MODULES = ("scipy.sparse", "scipy.linalg", "pyarrow", "h5py", "pipeline.config.root")
"""The modules that a process loads that runs networks, and those that all others load."""


@dataclass(frozen=True)
class Rates:
    """How fast this machine is; of the encoders by name.

    Images a second that become features (`images`), of which one process has `decoded` so many and the network taken
    (`forward`) so many, and sentences a second that become vectors (`encoded`); None: not measured. Images that
    `ingest` can `inspect` a second; seconds in which a dictionary is loaded for the `first_text`; `flops` of products
    in single precision; seconds in which a process `starts` with torch, or without (`starts_light`). `share`: the part
    of its threads' time that the product had the processors for, below 1 where other work had them.
    """

    images: Mapping[str, float | None]
    decoded: Mapping[str, float | None]
    forward: Mapping[str, float | None]
    inspected: float
    encoded: Mapping[str, float | None]
    first_text: float
    flops: float
    starts: float
    starts_light: float
    share: float


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


def measure_flops(threads: int) -> tuple[float, float]:
    """Operations a second of a product of two matrices in single precision, the better of two, and the share of the
    time of `threads` for which they had the processors."""
    matrix = np.random.default_rng(0).standard_normal((SIDE, SIDE), np.float32)
    seconds, busy = [], time.process_time()
    for _ in range(2):
        start = time.perf_counter()
        matrix @ matrix.T
        seconds.append(time.perf_counter() - start)
    busy = time.process_time() - busy
    return 2 * SIDE**3 / min(seconds), min(1.0, busy / sum(seconds) / threads)


def measure_start(modules: Sequence[str]) -> float:
    """Seconds in which a process comes up with these modules."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "; ".join(f"import {name}" for name in modules)], check=True)
    return time.perf_counter() - start

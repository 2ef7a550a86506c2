"""The same sum on one process and on Dask's workers, and with a worker killed half-way."""

import os
import signal
import threading
import time
from operator import add
from pathlib import Path

import numpy as np
import pytest

from pipeline.mapreduce import map_reduce


def draw(seed: int) -> np.ndarray:
    """Numbers whose sum depends on the order in which it is taken."""
    return np.random.default_rng(seed).standard_normal(1000).astype(np.float32) * 10.0 ** (seed % 7)


def append(left: str, right: str) -> str:
    return f"({left} {right})"


def with_suffix(item: int, suffix: str) -> str:
    return f"{item}{suffix}"


def linger(item: int, folder: Path) -> np.ndarray:
    """`draw`, slowly, leaving a trace of the process that has begun it."""
    (folder / f"{item}-{os.getpid()}-{time.monotonic_ns()}").touch()
    time.sleep(0.1)
    return draw(item)


def test_results_are_combined_in_the_order_of_the_items() -> None:
    assert map_reduce(with_suffix, range(5), append, shared=("!",)) == "((((0! 1!) 2!) 3!) 4!)"
    expected = sum(sum(draw(seed) for seed in range(first, first + 3)) for first in range(0, 24, 3))
    assert map_reduce(draw, iter(range(24)), add).tobytes() == expected.tobytes()
    assert map_reduce(draw, [3], add).tobytes() == draw(3).tobytes()


def test_a_killed_worker_does_not_change_the_sum(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    expected = map_reduce(draw, range(40), add)
    with distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster:
        victim = next(iter(cluster.workers.values())).pid

        def kill_half_way() -> None:
            while len(list(tmp_path.glob(f"*-{victim}-*"))) < 4:
                time.sleep(0.01)
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill_half_way)
        killer.start()
        found = map_reduce(linger, range(40), add, cluster.scheduler_address, (tmp_path,))
        killer.join()
    assert len(list(tmp_path.iterdir())) > 40, "what the killed worker held must have been done again"
    assert found.tobytes() == expected.tobytes()

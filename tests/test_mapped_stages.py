"""Tests which show that shards, sums and manifests are the same whether one process, several processes, GPUs or Dask
workers make them, even if a worker is killed.
"""

import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import add
from pathlib import Path

import pytest
from slow_work import linger, numbers, slow_encoding, slow_gpu_encoding
from synthetic_colours import draw
from synthetic_run import ingest, make_run, write_config

from pipeline.collections import inspection
from pipeline.compute.mapreduce import map_reduce
from pipeline.errors import JointspaceError, UsageError
from pipeline.run import runner
from pipeline.run.run import Run
from pipeline.run.stage import Stage

IN_PROCESS = {}
CLUSTER = {"scheduler": "local", "cluster": {"workers": 2}}


def encoded(run: Path, how: dict, again: bool = True, stage: Stage = slow_encoding) -> dict[str, bytes]:
    """Run a stage that encodes sentences with `tfidf`, and return the bytes of the shards and of their commit records
    by file name. `how` changes the configuration of the run. With `again`, shards that exist are encoded again.
    """
    write_config(run, how)
    runner.run_stage(Run(run), stage, ("tfidf",), again=again)
    return {path.name: path.read_bytes() for path in sorted((run / "text/tfidf").glob("shard-*"))}


@contextmanager
def killing(run: Path, count: int) -> Iterator[None]:
    """Kill the first other process that has begun `count` shards of the run, while the context lasts. The test fails if
    there is no such process.
    """

    def kill() -> None:
        while not stopped.wait(0.01):
            pids = Counter(int(path.name.split("-")[1]) for path in (run / "begun").glob("*"))
            if victims := [pid for pid, begun in pids.items() if begun >= count and pid != os.getpid()]:
                os.kill(victims[0], signal.SIGKILL)
                killed.append(victims[0])
                return

    stopped = threading.Event()
    killed = []
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        stopped.set()
        killer.join()
    assert killed


def test_shards_are_the_same_whatever_the_number_of_parts(tmp_path: Path) -> None:
    run = make_run(tmp_path, images=48)
    expected = encoded(run, IN_PROCESS)
    assert len(expected) == 10
    for part in range(5):
        write_config(run, {"parts": 5})
        runner.run_stage(Run(run), slow_encoding, ("tfidf",), part=part, again=True)
    assert encoded(run, IN_PROCESS, again=False) == expected


def test_a_worker_that_is_killed_on_a_cluster_does_not_change_the_shards(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    run = make_run(tmp_path, images=96)
    expected = encoded(run, IN_PROCESS)
    shutil.rmtree(run / "text/tfidf")
    shutil.rmtree(run / "begun")
    with killing(run, 2):
        assert encoded(run, CLUSTER, again=False) == expected
    begun = [path.name.split("-")[0] for path in (run / "begun").iterdir()]
    assert len(set(begun)) == 10 and len(begun) <= 11, "more shards were made again than the one of the killed worker"


def test_results_are_combined_in_the_order_of_the_items() -> None:
    expected = sum(sum(numbers(seed) for seed in range(first, first + 3)) for first in range(0, 24, 3))
    assert map_reduce(numbers, iter(range(24)), add).tobytes() == expected.tobytes()
    assert map_reduce(numbers, [3], add).tobytes() == numbers(3).tobytes()


@contextmanager
def losing_a_worker(begun: Callable[[int], bool]) -> Iterator[str]:
    """Yield the address of a Dask cluster of two workers. One worker is killed as soon as `begun` returns true for the
    process id of this worker. The test fails if this does not happen.
    """
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster:
        victim = next(iter(cluster.workers.values())).pid

        def kill() -> None:
            while not begun(victim):
                time.sleep(0.01)
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        yield cluster.scheduler_address
        killer.join(10)
        assert not killer.is_alive(), "no worker was killed"


@pytest.mark.slow
def test_a_lost_worker_does_not_change_a_sum(tmp_path: Path) -> None:
    with losing_a_worker(lambda pid: len(list(tmp_path.glob(f"*-{pid}-*"))) >= 4) as address:
        found = map_reduce(linger, range(40), add, address, (tmp_path,))
    assert len(list(tmp_path.iterdir())) > 40, "the results of the killed worker were not computed again"
    assert found.tobytes() == map_reduce(numbers, range(40), add).tobytes()


@pytest.mark.slow
def test_a_lost_worker_of_ingest_leaves_no_incomplete_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "BLOCK_IMAGES", 4)
    draw(tmp_path / "data", 40, 0)
    (tmp_path / "data/red-00.png").write_bytes(b"no photograph")
    alone = tmp_path / "alone/manifest"
    shared = tmp_path / "shared/manifest"
    settings = {"collection": {"reject_limit": 0.1}}
    ingest(alone.parent, tmp_path / "data", settings)
    parts = shared.parent / "manifest.parts"
    with losing_a_worker(lambda pid: len(list(parts.glob("*.json"))) >= 2) as address:
        ingest(shared.parent, tmp_path / "data", settings, {"scheduler": address})
    files, expected = (
        {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} for folder in (shared, alone)
    )
    assert files == expected and not parts.exists()


CARDS = ["GPU-aa", "3"]


def test_each_of_two_gpus_has_one_process_and_the_same_command_continues_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, images=96)
    expected = encoded(run, IN_PROCESS)
    for name in ("begun", "told", "text/tfidf"):
        shutil.rmtree(run / name)
    monkeypatch.setattr(runner, "visible_gpus", lambda: CARDS)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    how = {"device": "auto"}
    with killing(run, 2), pytest.raises(JointspaceError, match="the same command again"):
        encoded(run, how, again=False, stage=slow_gpu_encoding)
    killed = {path.name.split("-")[1] for path in (run / "begun").iterdir()}
    shutil.rmtree(run / "told")
    assert encoded(run, how, again=False, stage=slow_gpu_encoding) == expected
    begun = [path.name.split("-") for path in (run / "begun").iterdir()]
    assert len({number for number, *_ in begun}) == 10 and len(begun) <= 14, "finished shards were made again"
    told = {path.name: path.read_text().split() for path in (run / "told").iterdir()}
    assert told.keys() == {pid for _, pid, _ in begun} - killed, "a process changed its GPU"
    assert sorted(card for card, *_ in told.values()) == sorted(CARDS) and str(os.getpid()) not in told
    assert {tuple(threads) for _, *threads in told.values()} == {("1", "1")}, "the processes do not share the threads"
    (run / "refused").touch()
    with pytest.raises(UsageError, match="shard 2 names its remedy"):
        encoded(run, {"workers": 2})
    assert len(list((run / "told").iterdir())) > len(told), "no worker process was started"

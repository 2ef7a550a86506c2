"""The same shards of a stage in one process, in several, on cards and on Dask's workers, and with a worker killed."""

import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from made_up import make_run, write_config
from threadpoolctl import threadpool_info

from pipeline.errors import JointspaceError, UsageError
from pipeline.run import runner
from pipeline.run.run import Run
from pipeline.run.stage import Job
from stages.text import encode


def slow_encoding(run: Run, encoder: str) -> Callable[[Iterator[list[Job]]], Iterator[int]]:
    """As the stage's own, slowly, leaving a trace of the process that has begun a shard; the one before is reported
    only then."""
    make, begun = encode.encode_sentences.function(run, encoder), run.root / "begun"
    begun.mkdir(exist_ok=True)
    (run.root / "told").mkdir(exist_ok=True)

    def slowly(shards: Iterator[list[Job]]) -> Iterator[int]:
        before: list[int] = []
        for (job,) in shards:
            (begun / f"{job.number}-{os.getpid()}-{time.monotonic_ns()}").touch()
            time.sleep(0.1)
            said = [os.environ.get(name, "none") for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")]
            counted = max(each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas")
            (run.root / "told" / str(os.getpid())).write_text(" ".join([*said, str(counted)]))
            if job.number == 2 and (run.root / "refused").exists():
                raise UsageError("shard 2 names its remedy")
            make(job)
            yield from before
            before = [job.number]
        yield from before

    return slowly


slow_encoding = replace(encode.encode_sentences, function=slow_encoding, in_stream=True)
ON_CARDS = replace(slow_encoding, gpu=True)
IN_PROCESS, PROCESSES, CLUSTER = {}, {"workers": 2}, {"scheduler": "local", "cluster": {"workers": 2}}


def encoded(run: Path, how: dict, again: bool = True) -> dict[str, bytes]:
    """The shards of sentences and their sidecars, made as the configuration `how` says."""
    write_config(run, how)
    runner.run_stage(Run(run), slow_encoding, ("tfidf",), again=again)
    return {path.name: path.read_bytes() for path in sorted((run / "text/tfidf").glob("shard-*"))}


@contextmanager
def killing(run: Path, count: int) -> Iterator[None]:
    """Meanwhile, kill the first other process that has begun `count` shards; there must be one."""

    def kill() -> None:
        while not stopped.wait(0.01):
            pids = Counter(int(path.name.split("-")[1]) for path in (run / "begun").glob("*"))
            if victims := [pid for pid, begun in pids.items() if begun >= count and pid != os.getpid()]:
                os.kill(victims[0], signal.SIGKILL)
                killed.append(victims[0])
                return

    stopped, killed = threading.Event(), []
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
    assert len(set(begun)) == 10 and len(begun) <= 11, "only the shard of the killed worker is made again"


def test_the_same_command_goes_on_after_a_process_was_killed(tmp_path: Path) -> None:
    run = make_run(tmp_path, images=96)
    expected = encoded(run, IN_PROCESS)
    shutil.rmtree(run / "text/tfidf")
    shutil.rmtree(run / "begun")
    with killing(run, 2), pytest.raises(JointspaceError, match="the same command again"):
        encoded(run, PROCESSES, again=False)
    assert encoded(run, PROCESSES, again=False) == expected
    begun = [path.name.split("-")[0] for path in (run / "begun").iterdir()]
    assert len(set(begun)) == 10 and len(begun) <= 14, "finished shards are kept"


CARDS = ["GPU-aa", "3"]


def test_each_of_two_cards_has_one_process_and_all_shards_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, images=96)
    expected = encoded(run, IN_PROCESS)
    for name in ("begun", "told"):
        shutil.rmtree(run / name)
    monkeypatch.setattr(runner, "visible_gpus", lambda: CARDS)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    write_config(run, {"device": "auto"})
    runner.run_stage(Run(run), ON_CARDS, ("tfidf",), again=True)
    assert {path.name: path.read_bytes() for path in sorted((run / "text/tfidf").glob("shard-*"))} == expected
    seen = [path.name.split("-")[1] for path in (run / "begun").iterdir()]
    assert len(seen) == 10 and len(set(seen)) == 2 and str(os.getpid()) not in seen
    told = {path.name: path.read_text().split() for path in (run / "told").iterdir()}
    assert sorted(told) == sorted(set(seen)), "a process keeps its card"
    assert sorted(card for card, *_ in told.values()) == sorted(CARDS)
    assert {tuple(threads) for _, *threads in told.values()} == {("1", "1")}, "the processes share the threads"
    (run / "refused").touch()
    with pytest.raises(UsageError, match="shard 2 names its remedy"):
        runner.run_stage(Run(run), ON_CARDS, ("tfidf",), again=True)

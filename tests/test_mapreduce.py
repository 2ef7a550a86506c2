"""The same sum on one process, on threads and on Dask's workers, and with a worker killed half-way."""

import os
import resource
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import add, iadd
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4
from weakref import WeakSet

import numpy as np
import pytest
from made_up import make_run, make_stage, retell, write_config
from scipy import sparse

from pipeline.errors import JointspaceError, UsageError
from pipeline.index.shard_search import ShardVectors, search_parts
from pipeline.mapreduce import LargeSums, map_reduce
from pipeline.metrics.ranks import count_ranks
from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.sets import FoldedMoments, Restriction
from pipeline.run import runner
from pipeline.run.mappers import ShardTask
from pipeline.run.run import Run
from pipeline.run.stage import Job
from stages.text import encode_sentences as encoding


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a Dask cluster of two processes."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


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


@pytest.mark.parametrize("scheduler", ["local", "threads", "workers"])
def test_results_are_combined_in_the_order_of_the_items(scheduler: str, address: str) -> None:
    scheduler = address if scheduler == "workers" else scheduler
    text = map_reduce(with_suffix, range(5), append, scheduler, ("!",))
    assert text == "((0! 1!) (2! (3! 4!)))"
    runs = [sum(draw(seed) for seed in range(first, first + 3)) for first in range(0, 24, 3)]
    pairs = [left + right for left, right in zip(runs[::2], runs[1::2], strict=True)]
    expected = (pairs[0] + pairs[1]) + (pairs[2] + pairs[3])
    found = map_reduce(draw, iter(range(24)), add, scheduler)
    assert found.tobytes() == expected.tobytes()
    assert map_reduce(draw, [3], add, scheduler).tobytes() == draw(3).tobytes()


class Counted:
    """A text in the order in which it was put together, and how many of them there have been at once."""

    alive, most = WeakSet(), 0

    def __init__(self, text: str) -> None:
        self.text = text
        Counted.alive.add(self)
        Counted.most = max(Counted.most, len(Counted.alive))

    def absorb(self, other: "Counted") -> "Counted":
        self.text = append(self.text, other.text)
        return self


class Written(np.ndarray):
    """What of a sum goes into its file; nothing of it is left when the next item is mapped."""

    alive, __hash__ = WeakSet(), object.__hash__


def to_arrays(total: Counted) -> dict[str, np.ndarray]:
    arrays = {name: np.frombuffer(total.text.encode(), np.uint8).view(Written) for name in ("text", "again")}
    Written.alive.update(arrays.values())
    return arrays


COUNTED = LargeSums(
    Counted.absorb,
    to_arrays,
    lambda arrays: Counted(arrays["text"].tobytes().decode()),
)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9, 17, 24, 64, 100])
def test_one_process_holds_two_sums_at_most_and_adds_in_the_same_order(count: int) -> None:
    Counted.most = 0

    def count_one(item: int) -> Counted:
        assert not Written.alive
        return Counted(f"{item}!")

    found = map_reduce(count_one, range(count), append, large=COUNTED)
    assert found.text == map_reduce(with_suffix, range(count), append, shared=("!",))
    assert Counted.most == min(2, count)
    del found
    assert not Counted.alive


def test_large_sums_keep_every_bit_in_a_file_that_nobody_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = []

    def look(item: int) -> np.ndarray:
        seen.extend(tmp_path.iterdir())
        return draw(item)

    large = LargeSums(iadd, lambda total: {"total": total}, lambda arrays: arrays["total"])
    found = map_reduce(look, range(24), add, large=large)
    assert found.tobytes() == map_reduce(draw, range(24), add).tobytes()
    assert not seen and not list(tmp_path.iterdir())


def test_a_sum_that_finds_no_room_names_the_setting_that_moves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    large = LargeSums(iadd, lambda total: {"total": total}, lambda arrays: arrays["total"])
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, usual[1]))
    try:
        with pytest.raises(JointspaceError, match=f"a sum of 4,000 bytes does not fit into {tmp_path} .*set TMPDIR"):
            map_reduce(draw, range(24), add, large=large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


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


def fail(item: int) -> int:
    raise UsageError(f"item {item} names its remedy")


@pytest.mark.parametrize("scheduler", ["local", "threads", "workers"])
def test_an_error_stays_the_sentence_that_it_was(scheduler: str, address: str) -> None:
    with pytest.raises(UsageError, match="item 0 names its remedy"):
        map_reduce(fail, [0], add, address if scheduler == "workers" else scheduler)


@pytest.mark.parametrize(
    ("scheduler", "message"), [("dask", "neither local nor threads"), ("tcp://127.0.0.1:9", "no Dask scheduler")]
)
def test_a_wrong_scheduler_is_refused(scheduler: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.clusters.CONNECT_SECONDS", 0.5)
    with pytest.raises(UsageError, match=message):
        map_reduce(draw, [0], add, scheduler)


def encode_sentences(run: Run, encoder: str) -> Callable[[Job], None]:
    """As the stage's own, slowly, leaving a trace of the process that has begun a shard."""
    make, begun = encoding.STAGE.function(run, encoder), run.root / "begun"
    begun.mkdir(exist_ok=True)

    def slowly(job: Job) -> None:
        (begun / f"{job.number}-{os.getpid()}-{time.monotonic_ns()}").touch()
        time.sleep(0.1)
        (run.root / "told").mkdir(exist_ok=True)
        said = [os.environ.get(name, "none") for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")]
        (run.root / "told" / str(os.getpid())).write_text(" ".join(said))
        if job.number == 2 and (run.root / "refused").exists():
            raise UsageError("shard 2 names its remedy")
        if job.number == 2 and (run.root / "deadly").exists():
            os._exit(1)
        make(job)

    return slowly


STAGE = replace(encoding.STAGE, function=encode_sentences)
ON_CARDS = replace(STAGE, needs=replace(STAGE.needs, gpu=lambda sizes: 1))
IN_PROCESS, PROCESSES, CLUSTER = {}, {"workers": 2}, {"scheduler": "local", "cluster": {"workers": 2}}


def encoded(run: Path, how: dict, again: bool = True) -> dict[str, bytes]:
    """The shards of sentences and their sidecars, made as the configuration `how` says."""
    write_config(run, how)
    runner.make(Run(run), STAGE, ("tfidf",), again=again)
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


@pytest.mark.parametrize("how", [PROCESSES, CLUSTER, {"scheduler": "address"}], ids=["processes", "cluster", "address"])
def test_shards_are_the_same_wherever_they_are_made(how: dict, address: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, images=48)
    expected = encoded(run, IN_PROCESS)
    assert len(expected) == 10
    assert encoded(run, {"scheduler": address} if how == {"scheduler": "address"} else how) == expected
    others = {path.name.split("-")[1] for path in (run / "begun").glob("*")} - {str(os.getpid())}
    assert others, "nothing was made elsewhere"
    for part in range(5):
        write_config(run, {"shards_per_job": 1})
        runner.make(Run(run), STAGE, ("tfidf",), part=part, again=True)
    assert encoded(run, IN_PROCESS, again=False) == expected


@pytest.mark.parametrize("how", [PROCESSES, CLUSTER], ids=["processes", "cluster"])
def test_a_killed_worker_does_not_change_the_shards(how: dict, tmp_path: Path) -> None:
    if how == CLUSTER:
        pytest.importorskip("distributed")
    run = make_run(tmp_path, images=200)
    expected = encoded(run, IN_PROCESS)
    shutil.rmtree(run / "text/tfidf")
    shutil.rmtree(run / "begun")
    with killing(run, 4):
        assert encoded(run, how, again=False) == expected
    begun = [path.name.split("-")[0] for path in (run / "begun").iterdir()]
    assert len(set(begun)) == 20 and len(begun) <= 21, "only the shard of the killed worker is made again"


def test_dask_shows_the_stage_by_its_name() -> None:
    split = pytest.importorskip("dask.utils").key_split
    task = ShardTask("stages.text.encode_sentences", Path("run"), ("my-text.2",), False, uuid4().hex)
    assert split(task.key(3)) == split(task.key(12345)) == "encode_sentences my_text.2"
    assert task.key(3) != task.key(4)


def test_a_worker_that_outlives_a_call_opens_everything_anew(address: str, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    first = encoded(run, {"scheduler": address})
    path = run / "text/encoders/tfidf/model.json"
    retell(path, "details", "settings", "normalise", value=False)
    retell(path, "fingerprint", value="another")
    second = encoded(run, {"scheduler": address})
    assert second != first and second == encoded(run, IN_PROCESS)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (CLUSTER, "4 workers died on one shard"),
        (PROCESSES, "every worker process died on shard 2; .* run the same command again"),
    ],
    ids=["cluster", "processes"],
)
def test_a_shard_that_no_worker_survives_is_given_up_and_the_others_stay(
    how: dict, message: str, tmp_path: Path
) -> None:
    if how == CLUSTER:
        pytest.importorskip("distributed")
    run = make_run(tmp_path, images=60)
    expected = encoded(run, IN_PROCESS)
    shutil.rmtree(run / "text/tfidf")
    (run / "deadly").touch()
    with pytest.raises(JointspaceError, match=message):
        encoded(run, how)
    kept = {path: path.stat().st_mtime_ns for path in (run / "text/tfidf").glob("*.h5") if shard_is_whole(path)}
    assert how == CLUSTER or len(kept) == 5
    (run / "deadly").unlink()
    assert encoded(run, how, again=False) == expected
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def shard_is_whole(path: Path) -> bool:
    return path.with_name(f"{path.name}.json").exists()


CARDS = ["GPU-aa", "GPU-bb", "2", "3"]


def test_each_of_four_cards_has_one_process_and_all_shards_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, images=200)
    expected = encoded(run, IN_PROCESS)
    for name in ("begun", "told"):
        shutil.rmtree(run / name)
    monkeypatch.setattr(runner, "visible_gpus", lambda: CARDS)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    write_config(run, {"device": "auto"})
    runner.make(Run(run), ON_CARDS, ("tfidf",), again=True)
    assert {path.name: path.read_bytes() for path in sorted((run / "text/tfidf").glob("shard-*"))} == expected
    seen = [path.name.split("-")[1] for path in (run / "begun").iterdir()]
    assert len(seen) == 20 and len(set(seen)) == 4 and str(os.getpid()) not in seen
    told = {path.name: path.read_text().split() for path in (run / "told").iterdir()}
    assert sorted(told) == sorted(set(seen)), "a process keeps its card"
    assert sorted(card for card, _ in told.values()) == sorted(CARDS)
    assert {threads for _, threads in told.values()} == {"2"}, "the processes share the threads"


@pytest.mark.parametrize("how", [IN_PROCESS, PROCESSES, CLUSTER], ids=["here", "processes", "cluster"])
def test_an_error_of_a_stage_stays_the_sentence_that_it_was(how: dict, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "refused").touch()
    with pytest.raises(UsageError, match="^shard 2 names its remedy$"):
        encoded(run, how)
    assert not (run / "text/tfidf/parts/00000.json").exists()


@pytest.mark.parametrize(
    ("scheduler", "message"), [("dask", "scheduler"), ("tcp://127.0.0.1:9", "no Dask scheduler answers at tcp://127")]
)
def test_a_stage_refuses_a_wrong_scheduler(
    scheduler: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.clusters.CONNECT_SECONDS", 0.5)
    with pytest.raises(UsageError, match=message):
        encoded(make_run(tmp_path), {"scheduler": scheduler})


def test_evaluation_and_search_are_the_same_anywhere(address: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", images=60)
    for name, scheduler in (("here", None), ("there", address)):
        write_config(run, {"scheduler": scheduler})
        make_stage("evaluate", run, "ncca", "train", "all-sentences")
        shutil.copy(run / "evaluation/ncca.train.all-sentences.json", tmp_path / f"{name}.json")
        found = ["--gallery", "sentences", "--queries", 9, "--neighbours", 4, "--output", tmp_path / f"{name}.h5"]
        make_stage("ground_truth", run, "ncca", *found)
    for suffix in ("json", "h5", "h5.json"):
        assert (tmp_path / f"here.{suffix}").read_bytes() == (tmp_path / f"there.{suffix}").read_bytes()


def test_ranks_are_the_same_on_workers(address: str) -> None:
    rng = np.random.default_rng(0)
    images, owners = rng.standard_normal((300, 8)).astype(np.float32), np.repeat(np.arange(300), 5)
    sentences = images[owners] + rng.standard_normal((1500, 8)).astype(np.float32)
    here = count_ranks(images, sentences, owners, "inner_product")
    there = count_ranks(images, sentences, owners, "inner_product", address)
    assert (here.image_to_sentence == there.image_to_sentence).all()
    assert (here.sentence_to_image == there.sentence_to_image).all()


def test_search_of_parts_is_search_of_the_whole() -> None:
    rng = np.random.default_rng(1)
    vectors, queries = (rng.standard_normal((n, 6)).astype(np.float32) for n in (90, 7))
    vectors[60] = vectors[10]  # equal scores: the lower row first
    parts = [ShardVectors(start, partial(vectors.__getitem__, slice(start, start + 25))) for start in range(0, 90, 25)]
    found = search_parts(queries, parts, 80, "inner_product")
    order = np.argsort(-(queries.astype(float) @ vectors.T.astype(float)), axis=1, kind="stable")
    assert (found.rows == order[:, :80]).all()
    few = search_parts(
        queries, [ShardVectors(0, lambda: vectors[:2]), ShardVectors(2, lambda: vectors[2:3])], 5, "inner_product"
    )
    assert (np.sort(few.rows, axis=1) == [-1, -1, 0, 1, 2]).all() and np.isneginf(few.scores[:, 3:]).all()


def test_moments_of_many_shards_are_summed_anywhere(address: str) -> None:
    rng = np.random.default_rng(2)
    arrays = []
    for _ in range(5):
        accumulator = MomentsAccumulator(4, 3, 1)
        y = sparse.csr_array(rng.random((20, 3), np.float32))
        accumulator.add(rng.standard_normal((20, 4)).astype(np.float32), y, np.arange(20))
        arrays.append(accumulator.result().to_arrays())
    source = SimpleNamespace(
        view={"encoders": ["made"], "dims": [4], "steps": []},
        text={"encoders": ["tfidf"], "dims": [3], "sparse": [True], "steps": [[]], "weights": [1.0]},
        n_folds=1,
        moments=lambda folds: [partial(dict, part) for part in arrays],
    )
    sums = [
        FoldedMoments(source, where).sum([0], Restriction(("made",), {"tfidf": 1.0}))
        for where in ("local", "threads", address)
    ]
    for other in sums[1:]:
        assert sums[0].n == other.n == 100
        for name in ("mean_x", "mean_y", "xx", "xy", "yy"):
            assert getattr(sums[0], name).tobytes() == getattr(other, name).tobytes()

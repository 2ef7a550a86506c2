"""Running a stage: as a whole, or mapped over the shards of a part: in this process, on processes of this machine, on
its GPUs, or on a Dask cluster.

A worker opens the stage once and keeps it open for all shards that it is given. Every shard is committed by whoever
made it, so whatever ends a worker costs at most the shard that it was making.
"""

import importlib
import itertools
import logging
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar
from uuid import uuid4

from pipeline.compute import runtime
from pipeline.compute.device import visible_gpus
from pipeline.compute.mapreduce import connect, import_extra
from pipeline.compute.workers import share_threads, start_process, stream
from pipeline.config.keys import ClusterSettings
from pipeline.errors import JointspaceError, UsageError
from pipeline.run.jobs import Jobs, StageRun
from pipeline.run.layout import Artefact, Shards
from pipeline.run.run import Run, share
from pipeline.run.stage import Names, ShardJob, Stage
from pipeline.storage.batch import sweep
from pipeline.storage.commit import Provenance, describe_file, publish_record, remove_from
from pipeline.storage.features import has_unfinished, remove_unfinished
from pipeline.storage.locks import hold

log = logging.getLogger(__name__)
LOST_WORKERS = 3
"""A shard is given up after so many of its workers have died."""
AHEAD = 1024
"""Items that a Dask scheduler knows of at a time."""
NAMED_CLUSTERS = {
    "local": ("distributed", "LocalCluster", "cluster"),
    "slurm": ("dask_jobqueue", "SLURMCluster", "slurm"),
    "kubernetes": ("dask_kubernetes.operator", "KubeCluster", "kubernetes"),
}
"""`scheduler` -> module and class of its cluster, and the extra that brings it."""


@dataclass(frozen=True)
class ShardTask:
    """One stage on one run, in a form that can be pickled.

    `module` is where `stage` is declared. `every` has the names to make: one tuple, or several if the stage makes them
    together. `again` says whether existing shards are made anew. `call` is unique to a call of the runner, so that a
    worker that outlives it opens everything anew for the next call.
    """

    module: str
    stage: str
    root: Path
    every: tuple[Names, ...]
    again: bool
    call: str
    what: ClassVar[str] = "shard"

    @property
    def names(self) -> list[str]:
        """The names that the stage's function is called with."""
        return [name for names in self.every for name in names]

    def key(self, number: int) -> str:
        """Return what Dask calls the task of a shard. Its pages show the stage and its names, which end before the
        call."""
        label = " ".join([self.stage, *self.names]).replace("-", "_")
        return f"{label}-{self.call}-{number}"

    def __call__(self, number: int) -> int:
        """Make one shard, unless a worker that died has committed it; returns its number."""
        _opened(self).make_one(number)
        return number

    def make(self, numbers: Iterable[int]) -> Iterator[int]:
        """Make the shards that are not there; yields the number of each shard that is committed."""
        return OpenStage(self).make(numbers)


class OpenStage:
    """The function of a stage over shards, in the process that calls it."""

    def __init__(self, task: ShardTask) -> None:
        # Dask's workers are daemons, which may start no processes. Stages decode images in processes, which end with
        # this one.
        multiprocessing.current_process().daemon = False
        self.task = task
        self.stage: Stage = getattr(importlib.import_module(task.module), task.stage)
        run = Run(task.root)
        self.jobs = Jobs(run)
        self.view = StageRun(run, self.stage, task.every)
        self._waiting: deque[int] = deque()
        self._making: Iterator[int] = iter(())

    def make(self, numbers: Iterable[int]) -> Iterator[int]:
        """Make shards in one call of the function, which may take the next shard before the last is committed."""
        with ExitStack() as opening:
            opening.enter_context(runtime.without_collection())  # torch is imported until the first job is taken
            yield from self.stage.function(self.view, self._missing(numbers, opening.close), *self.task.names)

    def make_one(self, number: int) -> None:
        """Make one shard by the function that made the last one, if that still takes jobs."""
        self._waiting.append(number)
        if next(self._making, None) is None and self._waiting:
            self._making = self.make(self._take())
            next(self._making, None)

    def _take(self) -> Iterator[int]:
        while self._waiting:
            yield self._waiting.popleft()

    def _missing(self, numbers: Iterable[int], opened: Callable[[], None]) -> Iterator[ShardJob]:
        """Yield the jobs of each shard that is not there."""
        for number in numbers:
            jobs = [self.jobs.shard_job(self.stage, names, number) for names in self.task.every]
            missing = [job for job in jobs if self.task.again or not self.jobs.is_done(job)]
            if missing:
                opened()
                yield from missing
        opened()


def run_stage(
    run: Run, stage: Stage, names: Names = (), part: int | None = None, again: bool = False, **options: Any
) -> None:  # Any: the options of the stage's command
    """Make what `stage` writes of `names`; of a sharded stage one part, or all of them.

    What was made from the same inputs by the same version is kept unless `again`. Raises JointspaceError where another
    process is making the same, and UsageError for an unknown part.
    """
    if stage.sharded:
        make_shards(run, stage, [names], part, again)
        return
    output = stage.outputs(run.layout, *names)[0]
    assert isinstance(output, Artefact)
    with hold(output.path):
        jobs = Jobs(run)
        job = jobs.job(stage, names)
        if again or not jobs.is_done(job):
            stage.function(StageRun(run, stage, [names]), job, *names, **options)
            return
        log.info("%s %s: already made from the same inputs", stage.command, " ".join(names))
        for path, commit in ((output.path, output.commit) for output in job.outputs if isinstance(output, Artefact)):
            os.utime(commit)  # Snakemake compares its time with those of what it was made from
            # A killed process may have begun to make the output again.
            for folder, _, _ in os.walk(path if path.is_dir() else path.parent):
                sweep(Path(folder))


def make_shards(run: Run, stage: Stage, every: Sequence[Names], part: int | None = None, again: bool = False) -> None:
    """Make shards as `run_stage` does; `every` lists the names to make, all in one pass."""
    outputs = [_shards_of(stage, run, names) for names in every]
    jobs, chunked = Jobs(run), outputs[0].chunked
    count = len(run.manifest.chunks) if chunked else run.manifest.n_shards
    parts = [range(count)] if chunked else [share(count, n, run.config.parts) for n in range(run.config.parts)]
    if part is not None and part >= len(parts):
        raise UsageError(f"{run.root} has {len(parts)} parts, from 0; there is no part {part}")
    root, call = run.root.absolute(), uuid4().hex
    task = ShardTask(stage.function.__module__, stage.name, root, tuple(every), again, call)
    for number in range(len(parts)) if part is None else [part]:
        with ExitStack() as locks:
            for shards in outputs:
                locks.enter_context(hold(shards.part(number)))
            numbers = parts[number]
            missing = [
                n for n in numbers
                if again or not all(jobs.is_done(jobs.shard_job(stage, names, n)) for names in every)
            ]  # fmt: skip
            if there := len(numbers) - len(missing):
                log.info("%s: %d of %d shards were already made", outputs[0].folder, there, len(numbers))
            for shard in _progress(task, _map(run, stage, task, missing), len(missing)):
                log.debug("%s: shard %d", outputs[0].folder, shard)
            summed = [path for names in every for path in stage.finish(run, *names)]
            for shards in outputs:
                commit_part(shards, number, numbers, Provenance(run.root, stage.name, stage.version), summed)
            if number == 0:
                for shards in outputs:
                    remove_former(shards, count, len(parts))


def _shards_of(stage: Stage, run: Run, names: Names) -> Shards:
    """Return what a stage over shards writes."""
    output = stage.outputs(run.layout, *names)[0]
    assert isinstance(output, Shards)
    return output


def commit_part(
    shards: Shards, number: int, numbers: Sequence[int], provenance: Provenance, summed: Sequence[Path]
) -> None:
    """Record that all shards of a part are made, and what was `summed` over them; no unfinished work is left."""
    sweep(shards.folder)
    for n in numbers:
        remove_unfinished(shards.shard(n))
    commits = [*map(shards.commit, numbers), *summed]
    files = {path.name: describe_file(path) for path in commits}
    publish_record(shards.part(number), {"name": shards.name}, provenance=provenance, files=files)


def remove_former(shards: Shards, count: int, parts: int) -> None:
    """Remove the shards of a larger manifest, which hold what was taken down, and the commits of more parts."""
    remove_from(parts, shards.part, alone=True)
    for number in itertools.takewhile(lambda n: has_unfinished(shards.shard(n)), itertools.count(count)):
        remove_unfinished(shards.shard(number))
    remove_from(count, shards.commit)


def _map(run: Run, stage: Stage, task: ShardTask, numbers: Sequence[int]) -> Iterator[int]:
    """Make shards as the configuration and the machine ask for: on a cluster, on processes, or in this one."""
    config = run.config
    if not numbers:
        return iter(())
    if config.scheduler is not None:
        return on_cluster(task, numbers, config.scheduler, config.cluster)
    environments = _environments(run, stage)[: len(numbers)]
    if len(environments) < 2:
        return task.make(numbers)
    return on_processes(task, numbers, environments)


def _environments(run: Run, stage: Stage) -> list[dict[str, str]]:
    """Return the variables of each worker process: one process per GPU if the stage can use GPUs, else `workers`
    processes. They share this process's threads."""
    config, cards = run.config, []
    if stage.gpu and config.device in ("auto", "cuda"):
        cards = visible_gpus()
    each = [{"CUDA_VISIBLE_DEVICES": card} for card in cards] if len(cards) > 1 else [{}] * config.workers
    return [{**share_threads(len(each)), **variables} for variables in each]


def _progress(task: ShardTask, made: Iterator[int], count: int) -> Iterator[int]:
    """Show a bar over the shards if there are several."""
    from tqdm import tqdm

    label = " ".join([task.stage.replace("_", "-"), *task.names])
    yield from tqdm(made, label, count, unit=" shards", disable=None if count > 1 else True)


@lru_cache(maxsize=1)
def _opened(task: ShardTask) -> OpenStage:
    """Return what a worker of a cluster keeps open from one shard to the next."""
    return OpenStage(task)


def on_processes(task: ShardTask, numbers: Iterable[int], environments: Sequence[Mapping[str, str]]) -> Iterator[int]:
    """Make shards on one new process for each of `environments`, which are variables that are added to this process's.

    A shard goes to the process that asks first. Raises the JointspaceError that a process raises, and a JointspaceError
    where a process dies. The other processes are then killed. What was committed stays.
    """
    waiting = iter(numbers)
    processes: dict[Connection, BaseProcess] = {}
    try:
        for variables in environments:
            process, connection = start_process(stream, variables, daemon=False)
            processes[connection] = process
            with suppress(OSError):  # of a process that has died, as is noticed below
                connection.send(task.make)
        while processes:
            for connection in wait(list(processes)):
                assert isinstance(connection, Connection)
                try:
                    message = connection.recv()
                    if message is None:
                        connection.send(next(waiting, None))
                except (EOFError, OSError):
                    process = processes.pop(connection)
                    process.join()
                    if process.exitcode:
                        raise JointspaceError(
                            "a worker process died (see its messages above); run the same command again to resume"
                        ) from None
                    continue
                if isinstance(message, JointspaceError):
                    raise message
                if message is not None:
                    yield message
    finally:
        for process in processes.values():
            process.kill()
            process.join()


Item = TypeVar("Item", contravariant=True)


class ClusterTask(Protocol[Item]):
    """A function of one item that can be pickled. `what` is what messages call an item, and `key` names its task."""

    what: ClassVar[str]

    def key(self, item: Item, /) -> str: ...

    def __call__(self, item: Item, /) -> int: ...


def on_cluster(
    task: ClusterTask[Item], items: Iterable[Item], scheduler: str, settings: ClusterSettings
) -> Iterator[int]:
    """Call `task` for each item on the workers of a Dask cluster, which see the same files under the same names and
    have this package. Items are drawn as they are worked on.

    `scheduler` is an address, or names a cluster that is started for this with the `settings`. Raises UsageError where
    it cannot be reached or started, JointspaceError for an item that no worker survives.
    """
    distributed = import_extra("distributed", "cluster")
    with _cluster(scheduler, settings) as cluster, connect(cluster, scheduler) as client:
        futures = (client.submit(task, item, key=task.key(item), pure=False, retries=0) for item in items)
        done = distributed.as_completed(islice(futures, AHEAD), loop=client.loop)
        for future in done:
            try:
                yield future.result()
                future.release()  # else Dask makes it again when the worker that made it dies
            except distributed.scheduler.KilledWorker as error:
                raise JointspaceError(
                    f"{LOST_WORKERS + 1} workers died on the same {task.what} ({error}); see their logs, or give them"
                    " more memory"
                ) from error
            done.update(islice(futures, 1))


@contextmanager
def _cluster(scheduler: str, settings: ClusterSettings) -> Iterator[Any]:  # Any: one of Dask's classes, or the address
    """Yield the address of a scheduler, or a cluster that ends with the block."""
    if "://" in scheduler:
        yield scheduler
        return
    module, name, extra = NAMED_CLUSTERS[scheduler]
    dask, workers, options = import_extra("dask", "cluster"), settings.workers, settings.options
    threads = max(1, runtime.threads() // workers) if scheduler == "local" else 1
    variables = dict.fromkeys(runtime.THREAD_VARIABLES, str(threads))
    if scheduler == "local":
        options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", **options}
    dask_settings = {
        "distributed.nanny.pre-spawn-environ": variables,
        "distributed.scheduler.allowed-failures": LOST_WORKERS,
    }
    with dask.config.set(dask_settings):
        try:
            cluster = getattr(import_extra(module, extra), name)(**options)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise UsageError(
                f"cannot start the scheduler {scheduler} ({error}); correct the section cluster"
            ) from error
        with cluster:
            if scheduler != "local":
                cluster.scale(workers)
            yield cluster

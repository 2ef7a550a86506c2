"""Running a stage, either as a single job or over the shards of a part.

Shards are made in this process, in several processes of this machine, on its GPUs, or on a Dask cluster. A worker
process opens the stage once and keeps it open for all of its shards. The worker commits each shard itself, so
committed shards are kept if a worker dies. If a process of this machine dies, the others are stopped and the command
fails, and the next run makes the shards that are missing. A Dask cluster goes on without the lost worker.
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
from pipeline.compute.device import VISIBLE_DEVICES, visible_gpus
from pipeline.compute.mapreduce import connect, import_extra
from pipeline.compute.workers import share_threads, start_process, stream
from pipeline.config.keys import ClusterSettings
from pipeline.errors import JointspaceError, UsageError
from pipeline.run.jobs import Jobs
from pipeline.run.layout import Artefact, Shards
from pipeline.run.run import Run, StageRun, shards_of_part
from pipeline.run.stage import Names, ShardJob, Stage
from pipeline.storage.batch import sweep
from pipeline.storage.commit import Provenance, describe_file, publish_record, remove_from
from pipeline.storage.features import has_unfinished, remove_unfinished
from pipeline.storage.locks import hold

log = logging.getLogger(__name__)
MAX_LOST_WORKERS = 3
"""Number of workers of a Dask cluster that may die on one item. If one more dies, the command fails."""
MAX_SUBMITTED_ITEMS = 1024
"""Largest number of items that a Dask scheduler has at a time."""
NAMED_CLUSTERS = {
    "local": ("distributed", "LocalCluster", "cluster"),
    "slurm": ("dask_jobqueue", "SLURMCluster", "slurm"),
    "kubernetes": ("dask_kubernetes.operator", "KubeCluster", "kubernetes"),
}
"""The Dask clusters that `scheduler` can name: the name -> module, class, and the extra that installs the module."""


@dataclass(frozen=True)
class ShardTask:
    """A stage of a run, in a form that can be pickled and sent to a worker.

    `module` is the name of the module that declares `stage`. `every` has a tuple of names for each job, such as the
    name of an encoder. There are several tuples if one call of the stage's function makes the shards of several jobs.
    If `again` is true, existing shards are made anew. `call` is unique for each call of the runner, so that a worker
    that outlives the call opens the stage anew for the next call.
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
        """The names that the stage's function gets as arguments."""
        return [name for names in self.every for name in names]

    def key(self, number: int) -> str:
        """Return Dask's key for the task of a shard. The dashboard of Dask shows the key up to the first hyphen."""
        label = " ".join([self.stage, *self.names]).replace("-", "_")
        return f"{label}-{self.call}-{number}"

    def __call__(self, number: int) -> int:
        """Make one shard and return its number. A shard that a lost worker had already committed is kept."""
        _opened(self).make_one(number)
        return number

    def make(self, numbers: Iterable[int]) -> Iterator[int]:
        """Make the missing shards among `numbers`, and yield the number of each shard when it is committed."""
        return OpenStage(self).make(numbers)


class OpenStage:
    """A stage that makes shards, opened in the process that calls the function of the stage."""

    def __init__(self, task: ShardTask) -> None:
        # Python does not let a daemon start processes, and Dask's workers are daemons. Stages start processes that
        # decode images, so this process is no longer marked as a daemon. The started processes end when this process
        # ends.
        multiprocessing.current_process().daemon = False
        self.task = task
        self.stage: Stage = getattr(importlib.import_module(task.module), task.stage)
        run = Run(task.root)
        self.jobs = Jobs(run)
        self.view = StageRun(run, self.stage, task.every)
        self._waiting: deque[int] = deque()
        self._making: Iterator[int] = iter(())

    def make(self, numbers: Iterable[int]) -> Iterator[int]:
        """Make the missing shards among `numbers` in one call of the stage's function, and yield the number of each
        committed shard.

        The function may begin a shard while the previous shard is not committed yet.
        """
        with ExitStack() as opening:
            # Garbage collection is off while the function imports torch, until the function takes the first job.
            opening.enter_context(runtime.without_collection())
            yield from self.stage.function(self.view, self._missing(numbers, opening.close), *self.task.names)

    def make_one(self, number: int) -> None:
        """Make one shard.

        If the function of the stage has not ended after the previous shard, it continues and makes this shard. If it
        has ended, it is called anew.
        """
        self._waiting.append(number)
        if next(self._making, None) is None and self._waiting:
            self._making = self.make(self._waiting_numbers())
            next(self._making, None)

    def _waiting_numbers(self) -> Iterator[int]:
        while self._waiting:
            yield self._waiting.popleft()

    def _missing(self, numbers: Iterable[int], opened: Callable[[], None]) -> Iterator[ShardJob]:
        """Yield the jobs of the missing shards among `numbers`. If the task makes shards anew, yield the jobs of all
        `numbers`.

        `opened` is called before the first job is yielded, or at the end if there is no job.
        """
        for number in numbers:
            jobs = [self.jobs.shard_job(self.stage, names, number) for names in self.task.every]
            missing = [job for job in jobs if self.task.again or not self.jobs.is_done(job)]
            if missing:
                opened()
                yield from missing
        opened()


def run_stage(
    run: Run, stage: Stage, names: Names = (), part: int | None = None, again: bool = False, **options: Any
) -> int:  # Any: the options of the stage's command
    """Run a stage for the names of one job, such as a model and a split.

    A stage over shards makes the shards of the part number `part`, or of all parts if `part` is None. Outputs that the
    same version of the stage made from the same inputs are kept, unless `again` is true. `options` are passed to the
    function of a stage without shards. Return the number of shards that were kept. For a stage without shards, return 1
    if its outputs were kept, and 0 if the stage was run. Raises JointspaceError if another process is making the same
    output, and UsageError for an unknown part.
    """
    if stage.sharded:
        return make_shards(run, stage, [names], part, again)
    output = stage.outputs(run.layout, *names)[0]
    assert isinstance(output, Artefact)
    with hold(output.path):
        jobs = Jobs(run)
        job = jobs.job(stage, names)
        if again or not jobs.is_done(job):
            stage.function(StageRun(run, stage, [names]), job, *names, **options)
            return 0
        log.debug(
            "%s is not run, because its output was already made from the same inputs.",
            " ".join([stage.command, *names]),
        )
        for path, commit in ((output.path, output.commit) for output in job.outputs if isinstance(output, Artefact)):
            os.utime(commit)  # Snakemake runs the job again if the commit record is older than an input.
            # A killed process may have left temporary files of a second attempt.
            for folder, _, _ in os.walk(path if path.is_dir() else path.parent):
                sweep(Path(folder))
        return 1


def make_shards(run: Run, stage: Stage, every: Sequence[Names], part: int | None = None, again: bool = False) -> int:
    """Run a stage over shards for several jobs at once. Return the number of shards that were kept.

    `every` has the names of each job. Only the part number `part` is made, or all parts if it is None. Existing shards
    are made anew only if `again` is true. Raises JointspaceError if another process is making one of the parts, and
    UsageError for an unknown part.
    """
    kept = 0
    outputs = [_shards_of(stage, run, names) for names in every]
    jobs = Jobs(run)
    chunked = outputs[0].chunked
    count = len(run.manifest.chunks) if chunked else run.manifest.n_shards
    n_parts = 1 if chunked else run.config.parts
    parts = [shards_of_part(count, n, n_parts) for n in range(n_parts)]
    if part is not None and part >= n_parts:
        raise UsageError(
            f"The chunk of shards {part} does not exist. The chunks of {run.root} are numbered 0 to {n_parts - 1}."
            " Choose one of them."
        )
    task = ShardTask(stage.function.__module__, stage.name, run.root.absolute(), tuple(every), again, call=uuid4().hex)
    for number in range(len(parts)) if part is None else [part]:
        with ExitStack() as locks:
            for shards in outputs:
                locks.enter_context(hold(shards.part_record(number)))
            numbers = parts[number]
            missing = [
                n for n in numbers
                if again or not all(jobs.is_done(jobs.shard_job(stage, names, n)) for names in every)
            ]  # fmt: skip
            kept += len(numbers) - len(missing)
            log.debug("%d of %d shards are missing in %s.", len(missing), len(numbers), outputs[0].folder)
            for shard in _progress(task, _make_missing(run, stage, task, missing), len(missing)):
                log.debug("The shard %d in %s is complete.", shard, outputs[0].folder)
            summed = [path for names in every for path in stage.finish(run, *names)]
            for shards in outputs:
                commit_part(shards, number, numbers, Provenance(run.root, stage.name, stage.version), summed)
            if number == 0:
                for shards in outputs:
                    remove_former(shards, count, len(parts))
    return kept


def _shards_of(stage: Stage, run: Run, names: Names) -> Shards:
    """Return the shards that one job of a stage writes. `names` are the names of the job, such as the name of an
    encoder. The stage must write shards. If the job has several outputs, the first output is returned."""
    output = stage.outputs(run.layout, *names)[0]
    assert isinstance(output, Shards)
    return output


def commit_part(
    shards: Shards, number: int, numbers: Sequence[int], provenance: Provenance, summed: Sequence[Path]
) -> None:
    """Write the commit record of the part `number` of `shards`. `numbers` are the shards of the part, which must exist.

    `provenance` is the origin that the record notes. `summed` are the paths of further commit records that the record
    lists. Unfinished files of the shards are removed.
    """
    sweep(shards.folder)
    for n in numbers:
        remove_unfinished(shards.shard(n))
    commits = [*map(shards.commit, numbers), *summed]
    files = {path.name: describe_file(path) for path in commits}
    publish_record(shards.part_record(number), {"name": shards.name}, provenance=provenance, files=files)


def remove_former(shards: Shards, count: int, parts: int) -> None:
    """Remove leftovers of an earlier state: shards from number `count` on, and commit records from part `parts` on.

    A collection from which photos were removed can have fewer shards, and the old shards still contain these photos.
    """
    remove_from(parts, shards.part_record, alone=True)
    for number in itertools.takewhile(lambda n: has_unfinished(shards.shard(n)), itertools.count(count)):
        remove_unfinished(shards.shard(number))
    remove_from(count, shards.commit)


def _make_missing(run: Run, stage: Stage, task: ShardTask, numbers: Sequence[int]) -> Iterator[int]:
    """Make the shards `numbers`, and yield the number of each shard when it is committed.

    The configuration and the number of GPUs decide whether the shards are made on a cluster, in several processes, or
    in this process.
    """
    config = run.config
    if not numbers:
        return iter(())
    if config.scheduler is not None:
        return on_cluster(task, numbers, config.scheduler, config.cluster)
    environments = _environments(run, stage, len(numbers))
    if len(environments) < 2:
        return task.make(numbers)
    return on_processes(task, numbers, environments)


def _environments(run: Run, stage: Stage, shards: int) -> list[dict[str, str]]:
    """Return the environment variables of each worker process that makes some of `shards` shards.

    If the stage uses GPUs and several GPUs are visible, there is one process per GPU. Otherwise, there are as many
    processes as the key `workers` says. There are never more processes than shards. All processes share the threads of
    this process. Processes on GPUs also share the decoding processes that a job with a single GPU would start.
    """
    config = run.config
    gpus = visible_gpus()[:shards] if stage.gpu and config.device in ("auto", "cuda") else []
    if len(gpus) < 2:
        return [share_threads(config.workers)] * min(config.workers, shards)
    environments = []
    for number, gpu in enumerate(gpus):
        decoders = len(range(number, max(run.decoders, len(gpus)), len(gpus))) if run.decoders else 0
        variables = {VISIBLE_DEVICES: gpu, runtime.DECODERS_VARIABLE: str(decoders)}
        environments.append({**share_threads(len(gpus)), **variables})
    return environments


def _progress(task: ShardTask, made: Iterator[int], count: int) -> Iterator[int]:
    """Yield the items of `made`, and show a progress bar if there are several shards (`count`)."""
    from tqdm import tqdm

    label = " ".join([task.stage.replace("_", "-"), *task.names])
    yield from tqdm(made, label, count, unit=" shards", disable=None if count > 1 else True)


@lru_cache(maxsize=1)
def _opened(task: ShardTask) -> OpenStage:
    """Return the opened stage of `task`, which a worker of a cluster keeps open from one shard to the next."""
    return OpenStage(task)


def on_processes(task: ShardTask, numbers: Iterable[int], environments: Sequence[Mapping[str, str]]) -> Iterator[int]:
    """Make shards in several new processes, and yield the number of each shard when it is committed.

    One process is started for each mapping in `environments`, which has variables to add to the environment of this
    process. A shard goes to the first process that is idle. Raises the JointspaceError that a process raises, and a
    JointspaceError if a process dies. In both cases the other processes are killed. Committed shards are kept.
    """
    waiting = iter(numbers)
    processes: dict[Connection, BaseProcess] = {}
    try:
        for variables in environments:
            process, connection = start_process(stream, variables, daemon=False)
            processes[connection] = process
            with suppress(OSError):  # If the process has died, the loop below raises the error.
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
                            "A worker process that makes shards has died. The messages above may say why. Run the same"
                            " command again. The command keeps the complete shards."
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
    """A function of one item that can be pickled. `what` is the noun for an item in messages, such as "shard"."""

    what: ClassVar[str]

    def key(self, item: Item, /) -> str:
        """Return Dask's key for the task of an item."""
        ...

    def __call__(self, item: Item, /) -> int: ...


def on_cluster(
    task: ClusterTask[Item], items: Iterable[Item], scheduler: str, settings: ClusterSettings
) -> Iterator[int]:
    """Call `task` for each item on the workers of a Dask cluster, and yield the results as they arrive.

    The workers must have this package, and must see the same files under the same paths. `scheduler` is the address of
    a running scheduler, or the name of a cluster in NAMED_CLUSTERS, which is started with `settings` and stopped at the
    end. `items` is consumed step by step. Raises UsageError if the cluster cannot be reached or started, and
    JointspaceError if more than MAX_LOST_WORKERS workers die on the same item.
    """
    distributed = import_extra("distributed", "cluster")
    with _cluster(scheduler, settings) as cluster, connect(cluster, scheduler) as client:
        futures = (client.submit(task, item, key=task.key(item), pure=False, retries=0) for item in items)
        done = distributed.as_completed(islice(futures, MAX_SUBMITTED_ITEMS), loop=client.loop)
        for future in done:
            try:
                yield future.result()
                future.release()  # Otherwise Dask would call the task again if its worker dies later.
            except distributed.scheduler.KilledWorker as error:
                raise JointspaceError(
                    f"{MAX_LOST_WORKERS + 1} workers died on the same {task.what} ({error}). See the logs of the"
                    " workers, or give the workers more memory."
                ) from error
            done.update(islice(futures, 1))


@contextmanager
def _cluster(scheduler: str, settings: ClusterSettings) -> Iterator[Any]:  # Any: one of Dask's classes, or the address
    """Yield `scheduler` if it is an address. Otherwise start the named cluster, yield it, and stop it after the block.

    Raises UsageError if the cluster cannot be started.
    """
    if "://" in scheduler:
        yield scheduler
        return
    module, name, extra = NAMED_CLUSTERS[scheduler]
    dask = import_extra("dask", "cluster")
    workers = settings.workers
    options = settings.options
    threads = max(1, runtime.threads() // workers) if scheduler == "local" else 1
    variables = dict.fromkeys(runtime.THREAD_VARIABLES, str(threads))
    if scheduler == "local":
        options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", **options}
    dask_settings = {
        "distributed.nanny.pre-spawn-environ": variables,
        "distributed.scheduler.allowed-failures": MAX_LOST_WORKERS,
    }
    with dask.config.set(dask_settings):
        try:
            cluster = getattr(import_extra(module, extra), name)(**options)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise UsageError(
                f"The cluster of `scheduler: {scheduler}` cannot be started ({error}). Correct the section `cluster` of"
                " the configuration."
            ) from error
        with cluster:
            if scheduler != "local":
                cluster.scale(workers)
            yield cluster

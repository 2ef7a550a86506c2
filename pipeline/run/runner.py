"""Running a stage: as a whole, or mapped over the shards of a part."""

import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pipeline import runtime
from pipeline.device import visible_gpus
from pipeline.errors import UsageError
from pipeline.run.layout import Shards
from pipeline.run.mappers import ShardTask, in_process, on_cluster, on_processes
from pipeline.run.run import Run
from pipeline.run.stage import Names, Stage
from pipeline.storage.commit import Provenance, describe_file, publish_record, remove_from
from pipeline.storage.features import has_unfinished, remove_unfinished
from pipeline.storage.locks import hold

log = logging.getLogger(__name__)


def make(
    run: Run, stage: Stage, names: Names = (), part: int | None = None, again: bool = False, **options: Any
) -> None:
    """Make what `stage` writes of `names`; of a sharded stage one part, or all of them.

    What was made from the same inputs by the same version is kept unless `again`. Raises JointspaceError where another
    process is making the same, and UsageError for an unknown part.
    """
    if stage.sharded:
        make_shards(run, stage, [names], part, again)
        return
    with hold(stage.outputs(run.layout, *names)[0].path):
        job = run.job(stage, names)
        if not again and run.is_done(job):
            log.info("%s %s: made before from the same inputs", stage.command, " ".join(names))
            for output in job.outputs:
                os.utime(output.commit)  # Snakemake compares its time with those of what it was made from
        else:
            stage.function(run, job, *names, **options)


def make_shards(run: Run, stage: Stage, every: Sequence[Names], part: int | None = None, again: bool = False) -> None:
    """The same of each of `every` of a sharded stage, which makes them together if there are several."""
    outputs = [stage.outputs(run.layout, *names)[0] for names in every]
    parts = [range(run.manifest.n_shards)] if outputs[0].whole else run.parts
    if part is not None and part >= len(parts):
        raise UsageError(f"{run.root} has {len(parts)} parts, from 0; there is no part {part}")
    task = ShardTask.of(stage, run, every, again)
    for number in range(len(parts)) if part is None else [part]:
        with ExitStack() as locks:
            for shards in outputs:
                locks.enter_context(hold(shards.part(number)))
            numbers = parts[number]
            missing = [n for n in numbers if again or not all(run.is_done(run.job(stage, one, n)) for one in every)]
            if there := len(numbers) - len(missing):
                log.info("%s: %d of %d shards were made before", outputs[0].folder, there, len(numbers))
            for shard in _progress(task, _map(run, stage, task, missing), len(missing)):
                log.debug("%s: shard %d", outputs[0].folder, shard)
            summed = [path for names in every for path in stage.finish(run, *names)]
            for shards in outputs:
                commit_part(shards, number, numbers, Provenance(run.root, stage.name, stage.version), summed)
            if number == 0:
                for shards in outputs:
                    remove_former(shards, run.manifest.n_shards, len(parts))


def commit_part(
    shards: Shards, number: int, numbers: Sequence[int], provenance: Provenance, summed: Sequence[Path]
) -> None:
    """Record that all shards of a part are made, and what was `summed` over them; no unfinished work is left."""
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
        return on_cluster(task, numbers, config.scheduler, config.cluster.model_dump())
    environments = _environments(run, stage)[: len(numbers)]
    if len(environments) < 2:
        return in_process(task, numbers)
    return on_processes(task, numbers, environments)


def _environments(run: Run, stage: Stage) -> list[dict[str, str]]:
    """The variables of each worker process: one process per GPU if the stage can use GPUs, else `workers` of them. They
    share this process's threads."""
    config, cards = run.config, []
    if stage.gpu and config.device in ("auto", "cuda"):
        cards = visible_gpus()
    each = [{"CUDA_VISIBLE_DEVICES": card} for card in cards] if len(cards) > 1 else [{}] * config.workers
    threads = dict.fromkeys(runtime.THREAD_VARIABLES, str(max(1, runtime.threads() // len(each))))
    return [{**threads, **own} for own in each]


def _progress(task: ShardTask, made: Iterator[int], count: int) -> Iterator[int]:
    """A bar over the shards, where there are several."""
    from tqdm import tqdm

    label = " ".join([task.module.rpartition(".")[2].replace("_", "-"), *task.names])
    return tqdm(made, label, count, unit=" shards", disable=None if count > 1 else True)

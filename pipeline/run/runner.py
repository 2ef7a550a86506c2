"""Running a stage: as a whole, or mapped over the shards of a part."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from pipeline import runtime
from pipeline.device import visible_gpus
from pipeline.errors import JointspaceError, UsageError
from pipeline.run.layout import Shards
from pipeline.run.mappers import ShardTask, in_process, on_cluster, on_processes
from pipeline.run.run import Run
from pipeline.run.stage import Names, Stage
from pipeline.storage.atomic import publish_json
from pipeline.storage.commits import combined_fingerprint, fingerprint_of, is_made
from pipeline.storage.locks import hold

log = logging.getLogger(__name__)


def make(
    run: Run, stage: Stage, names: Names = (), part: int | None = None, again: bool = False,
    others: Sequence[Names] = (), **options: Any,
) -> None:  # fmt: skip
    """Make what `stage` writes of `names`; of a sharded stage one part, or all of them.

    A shard that was made from the same inputs by the same version is kept unless `again`; a stage without shards always
    runs. `others` are made with it as far as they can be (see Stage.together); their own calls then find them made.
    Raises JointspaceError where another process is making the same.
    """
    if stage.sharded:
        _make_shards(run, stage, names, part, again, others)
        return
    made = stage.outputs(run.layout, *names)[0]
    with hold(made.path):
        stage.function(run, run.job(stage, names), *names, **options)


def make_batch(run: Run, stage: Stage, batch: str) -> list[Names]:
    """Make what is of one batch, but for what was made from the same inputs by the same version, and record it; returns
    the names.

    What cannot be made keeps nothing else from it: its JointspaceError is raised at the end. Raises UsageError for an
    unknown batch.
    """
    batches, failures = stage.batches(run.config), []
    if batch not in batches:
        raise UsageError(f"{stage.command}: there is no batch {batch}; there are {', '.join(batches)}")
    for names in batches[batch]:
        try:
            job = run.job(stage, names)
            if not all(is_made(one.commit, job.fingerprint) for one in job.outputs):
                make(run, stage, names)
        except JointspaceError as error:
            failures.append(error)
    for error in failures[1:]:
        log.error("%s", error)
    if failures:
        raise failures[0]
    commit_batches(run, stage)
    return batches[batch]


def commit_batches(run: Run, stage: Stage) -> None:
    """Record which artefacts each batch has, once all of them are there."""
    for batch, members in stage.batches(run.config).items():
        made = [one for names in members for one in stage.outputs(run.layout, *names)]
        if all(one.commit.exists() for one in made):
            listed = {one.commit.relative_to(run.root).as_posix(): fingerprint_of(one.commit) for one in made}
            about = {"name": batch, "fingerprint": combined_fingerprint(listed.values()), "artefacts": listed}
            publish_json(run.layout.batch(stage.name, batch).commit, about)


def _make_shards(run: Run, stage: Stage, names: Names, part: int | None, again: bool, others: Sequence[Names]) -> None:
    shards = stage.outputs(run.layout, *names)[0]
    if part is not None and part >= len(run.parts):
        raise UsageError(f"{run.root} has {len(run.parts)} parts, from 0; there is no part {part}")
    task = ShardTask.of(stage, run, names, again)
    for number in range(len(run.parts)) if part is None else [part]:
        with hold(shards.part(number)), ExitStack() as held:
            numbers = run.parts[number]
            lacking = set(numbers) if again else _lacking(run, stage, names, number)
            if there := len(numbers) - len(lacking):
                log.info("%s: %d of %d shards were made before", shards.folder, there, len(numbers))
            joining = []
            for other in others:
                try:
                    held.enter_context(hold(stage.outputs(run.layout, *other)[0].part(number)))
                    lacking |= _lacking(run, stage, other, number)
                    joining.append(other)
                except JointspaceError as error:
                    log.info("%s: without %s, whose own job says more: %s", shards.folder, " ".join(other), error)
            pending, joined = sorted(lacking), replace(task, others=tuple(joining))
            for made in _progress(stage, names, _map(run, stage, joined, pending), len(pending)):
                log.debug("%s: shard %d", shards.folder, made)
            stage.finish(run, number, *names)
            commit_part(shards, number, numbers)


def _lacking(run: Run, stage: Stage, names: Names, number: int) -> set[int]:
    """The shards of a part that are not made yet."""
    jobs = [run.job(stage, names, n) for n in run.parts[number]]
    return {job.number for job in jobs if not is_made(job.outputs[0].commit(job.number), job.fingerprint)}


def commit_part(shards: Shards, number: int, numbers: Sequence[int]) -> None:
    """Record that all shards of a part are made, and which they are; no unfinished parts of them are left."""
    from pipeline.storage.features import remove_unfinished

    for n in numbers:
        remove_unfinished(shards.shard(n))
    made = {str(n): fingerprint_of(shards.commit(n)) for n in numbers}
    digest = combined_fingerprint(made.values())
    publish_json(shards.part(number), {"name": shards.name, "fingerprint": digest, "shards": made})


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


def _progress(stage: Stage, names: Names, made: Iterator[int], count: int) -> Iterator[int]:
    """A bar over the shards, where there are several."""
    from tqdm import tqdm

    return tqdm(made, " ".join([stage.command, *names]), count, unit=" shards", disable=None if count > 1 else True)

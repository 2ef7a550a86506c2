"""Parts of a run: the shards of one job."""

import math

IMAGES_PER_JOB = 1 << 16
"""Extracting as many takes minutes on a processor; every other stage is faster."""
MOST_PARTS = 64
"""The most parts a run has, however many shards, unless `shards_per_job` says otherwise."""


def divide(shards: int, shard_size: int, shards_per_job: int | None = None, whole: bool = False) -> list[range]:
    """The shards of each part, the range of shards that is one job.

    A job takes minutes, and the number of jobs is bounded: schedulers and Snakemake's graph slow down with each.
    `shards_per_job` None chooses; `whole` makes one part of all shards, which a cluster's scheduler then divides among
    its workers.
    """
    if whole:
        return [range(shards)] if shards else []
    size = shards_per_job or max(IMAGES_PER_JOB // shard_size, math.ceil(shards / MOST_PARTS), 1)
    return [range(first, min(first + size, shards)) for first in range(0, shards, size)]

"""Parts: the ranges of shards that are one job each.

A job should be minutes of work, and the number of jobs should not grow with the collection: a scheduler, and
Snakemake's graph, take longer for each.
"""

import math

IMAGES_PER_JOB = 1 << 16
"""Of which extraction on a processor takes minutes; all other stages less."""
MOST_PARTS = 64
"""However many shards there are, unless `shards_per_job` says otherwise."""


def divide(shards: int, shard_size: int, shards_per_job: int | None = None, whole: bool = False) -> list[range]:
    """The shards of each part, in order. `shards_per_job` None chooses; `whole` makes one part of all shards, which a
    cluster's scheduler then divides among its workers."""
    if whole:
        return [range(shards)] if shards else []
    size = shards_per_job or max(IMAGES_PER_JOB // shard_size, math.ceil(shards / MOST_PARTS), 1)
    return [range(first, min(first + size, shards)) for first in range(0, shards, size)]

"""Parts of a run, each the shards of one job, and chunks of shards that are summed together."""

import math

IMAGES_TOGETHER = 1 << 16
MOST_CHUNKS = 64


def share(shards: int, part: int, parts: int) -> range:
    """The shards of part number `part` of `parts`, which differ by one shard at most."""
    return range(-(-part * shards // parts), -(-(part + 1) * shards // parts))


def chunks(shards: int, shard_size: int) -> list[range]:
    """Ranges of shards of about IMAGES_TOGETHER images, at most MOST_CHUNKS, whatever the number of parts: what is
    summed over them does not depend on where it was computed."""
    size = max(IMAGES_TOGETHER // shard_size, math.ceil(shards / MOST_CHUNKS), 1)
    return [range(first, min(first + size, shards)) for first in range(0, shards, size)]

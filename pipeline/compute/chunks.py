"""Chunks: ranges of consecutive shards that are summed into one file."""

import math

IMAGES_PER_CHUNK = 1 << 17
"""Approximate number of images in one chunk of shards, unless that makes more than MAX_CHUNKS chunks."""
MAX_CHUNKS = 64


def split_into_chunks(shards: int, shard_size: int) -> list[range]:
    """Divide `shards` shards into ranges of about IMAGES_PER_CHUNK images, at most MAX_CHUNKS ranges.

    A shard has `shard_size` images, and a chunk has at least one shard. The ranges do not depend on the number of jobs,
    so a sum over chunks does not depend on where it was computed. A collection that grows keeps all chunks but the
    last, until the chunks have to become larger, so that there are at most MAX_CHUNKS. The size of larger chunks, in
    shards, is a power of two.
    """
    doublings = max(math.ceil(shards / MAX_CHUNKS) - 1, 0).bit_length()
    size = max(IMAGES_PER_CHUNK // shard_size, 1 << doublings)
    return [range(first, min(first + size, shards)) for first in range(0, shards, size)]

"""Chunks: ranges of consecutive shards that are summed into one file."""

import math

IMAGES_PER_CHUNK = 1 << 16
"""Number of images in one chunk of shards, unless that makes more than MAX_CHUNKS chunks."""
MAX_CHUNKS = 64


def split_into_chunks(shards: int, shard_size: int) -> list[range]:
    """Return ranges of shards of about IMAGES_PER_CHUNK images, at most MAX_CHUNKS ranges.

    The ranges do not depend on the number of parts, so a sum over chunks does not depend on where it was computed. A
    collection that grows keeps all chunks but the last, until MAX_CHUNKS is reached. Chunks then have twice as many
    shards.
    """
    doublings = max(math.ceil(shards / MAX_CHUNKS) - 1, 0).bit_length()
    size = max(IMAGES_PER_CHUNK // shard_size, 1 << doublings)
    return [range(first, min(first + size, shards)) for first in range(0, shards, size)]

"""What ingest asks of every image: that it can be read and decoded, its size, and a hash of its bytes."""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

from pipeline.images.decode import ImageLimits, decode


class Inspection(NamedTuple):
    """An image that decodes: its size in pixels, upright, and the SHA-256 of its encoded bytes."""

    width: int
    height: int
    sha256: str


def inspect(read: Callable[..., bytes], limits: ImageLimits, location: tuple[Any, ...]) -> Inspection:
    """Read `location` and decode it fully. Raises InputError saying what is wrong with the image."""
    data = read(*location)
    width, height = decode(data, limits).size
    return Inspection(width, height, hashlib.sha256(data).hexdigest())

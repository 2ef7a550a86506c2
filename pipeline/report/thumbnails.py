"""Photographs small enough to stand inside a page."""

import base64
import io
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.errors import InputError
from pipeline.images.decode import ImageLimits, decode
from pipeline.report.examples import Picture

SIDE = 240
"""Pixels of the longer side: twice what most screens show of it."""
QUALITY = 70


def picture(row: Mapping[str, Any], read: Callable[..., bytes], limits: ImageLimits) -> Picture:
    """The photograph of a row of the images' table; without its address where it cannot be read any more."""
    name = "::".join(filter(None, (row["path"], row["member"])))
    try:
        return Picture(name, thumbnail(read(row["path"], row["offset"], row["size"]), limits))
    except InputError:
        return Picture(name, None)


def drawing(name: str, data: bytes) -> Picture:
    """The encoded PNG `data` as it is."""
    return Picture(name, "data:image/png;base64," + base64.b64encode(data).decode("ascii"))


def thumbnail(data: bytes, limits: ImageLimits) -> str:
    """A `data:` address of the encoded image `data` as a small JPEG. Raises UnreadableImage."""
    image = decode(data, limits)
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")

"""Photographs small enough to stand inside a page."""

import base64
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from PIL import Image

from pipeline.errors import InputError
from pipeline.images.decode import ImageLimits, decode
from pipeline.report.examples import ReportPicture

SIDE = 240
"""Pixels of the longer side: twice what most screens show of it."""
DRAWING_SIDE = 1600
"""Likewise of a drawing's width."""
QUALITY = 70


def picture(row: Mapping[str, Any], read: Callable[..., bytes], limits: ImageLimits) -> ReportPicture:
    """The photograph of a row of the images' table; without its address where it cannot be read any more."""
    name = "::".join(filter(None, (row["path"], row["member"])))
    try:
        return ReportPicture(name, thumbnail(read(row["path"], row["offset"], row["size"]), limits))
    except InputError:
        return ReportPicture(name, None)


class Photographs:
    """Small pictures of rows of the images' table, by `read(path, offset, size)`; `shown` says of each image_id whether
    it could be read.

    Where the collection was `moved`, a file of that name may be another photograph: its sha256 must be the row's.
    """

    def __init__(self, read: Callable[..., bytes], limits: ImageLimits, moved: bool) -> None:
        self._read = read
        self._limits = limits
        self._moved = moved
        self.shown: dict[int, bool] = {}

    def __call__(self, row: Mapping[str, Any]) -> ReportPicture:
        """The photograph of a row; without its address where it cannot be read."""
        found = picture(row, partial(self._read_same, row["sha256"]) if self._moved else self._read, self._limits)
        self.shown[row["image_id"]] = found.address is not None
        return found

    def _read_same(self, sha256: str, *place: Any) -> bytes:
        data = self._read(*place)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise InputError("changed: it is another photograph than the manifest's")
        return data


def drawing(name: str, data: bytes) -> ReportPicture:
    """A drawing of our own, encoded in `data`, as a JPEG no wider than DRAWING_SIDE."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    image.thumbnail((DRAWING_SIDE, image.height))
    return ReportPicture(name, _address(image))


def vector_drawing(name: str, data: bytes) -> ReportPicture:
    """An SVG drawing of our own as it is."""
    return ReportPicture(name, "data:image/svg+xml;base64," + base64.b64encode(data).decode("ascii"))


def thumbnail(data: bytes, limits: ImageLimits, box: Sequence[float] | None = None) -> str:
    """A `data:` address of the encoded image `data`, or of its part within `box` (x1, y1, x2, y2 in pixels), as a small
    JPEG. Raises UnreadableImage."""
    image = decode(data, limits)
    if box is not None:
        image = image.crop(tuple(map(round, box)))
    image.thumbnail((SIDE, SIDE))
    return _address(image)


def _address(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")

"""Photographs small enough to stand inside a page."""

import base64
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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


class Photographs:
    """Thumbnails of rows of the images' table, by `read(path, offset, size)`; `shown` says of each image_id whether it
    could be read.

    Where the collection has `moved`, a file of that name may be another photograph: its sha256 must be the row's.
    `caption(image_id)` is what is seen in one, or None.
    """

    def __init__(
        self,
        read: Callable[..., bytes],
        limits: ImageLimits,
        moved: bool = False,
        caption: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        self._read, self._limits, self._moved, self._caption = read, limits, moved, caption
        self.shown: dict[int, bool] = {}

    def __call__(self, row: Mapping[str, Any]) -> ReportPicture:
        """The photograph of a row; without its address where it cannot be read."""
        name, address = "::".join(filter(None, (row["path"], row["member"]))), None
        with suppress(InputError):
            data = self._read(row["path"], row["offset"], row["size"])
            if not self._moved or hashlib.sha256(data).hexdigest() == row["sha256"]:
                address = thumbnail(data, self._limits)
        self.shown[row["image_id"]] = address is not None
        return ReportPicture(name, address, self._caption(row["image_id"]))


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

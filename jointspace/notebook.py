"""Photos with lines of text, as a notebook shows them."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from html import escape

from pipeline.errors import InputError
from pipeline.images.opening import ImageLimits
from pipeline.report.photographs import thumbnail
from pipeline.storage.tables import Row

STYLE = "display: inline-block; width: 240px; margin: 8px; vertical-align: top; overflow-wrap: anywhere"


def draw(read: Callable[[Row], bytes], limits: ImageLimits, row: Row, *lines: str) -> str:
    """Return HTML with the thumbnail of a photo above lines of text.

    `read` returns the bytes of the photo of a row, and `limits` limit its size. The photo is not shown if it cannot be
    read, or if its content has changed since it was ingested.
    """
    image = ""
    with suppress(InputError):
        data = read(row)
        if hashlib.sha256(data).hexdigest() == row["sha256"]:
            image = f'<img src="{thumbnail(data, limits)}" alt="">'
    text = "".join(f"<div>{escape(line)}</div>" for line in lines)
    return f'<figure style="{STYLE}">{image}<figcaption>{text}</figcaption></figure>'

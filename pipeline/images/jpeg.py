"""What JPEG alone has: scans, and decoding at a fraction of the size."""

import math
import re
from collections.abc import Sequence

from PIL import Image

MOST_SCANS = 100
"""Each is a pass over all pixels for as few as 14 bytes. Encoders write ten; libtiff has this limit."""
MARGIN = 2
"""By how much a JPEG is decoded larger than it is needed, so that the resizing that follows decides how it looks."""
DRAFTS = (1, 2, 4, 8)
"""By how much a JPEG can be decoded smaller."""
SCAN, END = 0xDA, 0xD9
MARKER = re.compile(rb"\xff([\x02-\xcf\xd8-\xfe])")
"""A marker that ends a scan's data: neither a stuffed zero nor a restart within it."""


def has_more_scans(data: bytes, most: int) -> bool:
    """Whether a JPEG has more than `most` scans."""
    if data.count(bytes((0xFF, SCAN))) <= most:  # some may be in a thumbnail or after the end
        return False
    at, scans = 2, 0
    while (found := MARKER.search(data, at)) and found[1][0] != END:
        at = found.end() + int.from_bytes(data[found.end() : found.end() + 2])
        scans += found[1][0] == SCAN
        if scans > most:
            return True
    return False


def draft(image: Image.Image, sides: Sequence[int | None]) -> list[int]:
    """Have an opened JPEG decoded as small as the largest of `sides` allows (None: whole); returns by how much the
    decoded image is to be reduced to be as small as each allows."""
    drafts = [_draft(image.size, side) for side in sides]
    scale, asked = min(drafts)
    if image.draft(None, asked) is None:
        return [1] * len(sides)
    return [one // scale for one, _ in drafts]


def reduce(image: Image.Image, factors: Sequence[int]) -> list[Image.Image]:
    """The image reduced by each of `factors`, by averaging its pixels."""
    made = {factor: image.reduce(factor) if factor > 1 else image for factor in set(factors)}
    return [made[factor] for factor in factors]


def _draft(size: tuple[int, int], side: int | None) -> tuple[int, tuple[int, int]]:
    """By how much a JPEG of this `size` is decoded smaller for `side`, and the size that Pillow is asked for."""
    least = 1 if side is None else MARGIN * side / min(size)
    asked = tuple(math.ceil(least * length) for length in size)
    fits = min(length // part for length, part in zip(size, asked, strict=True))
    return max(scale for scale in DRAFTS if scale <= max(1, fits)), asked

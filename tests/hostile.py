"""Images that are small as files and take long to decode."""

import io

from PIL import Image


def many_scans(count: int, side: int = 2000) -> bytes:
    """A progressive JPEG, one grey, of `count` scans: its last one, of 14 bytes at this side, again and again."""
    buffer = io.BytesIO()
    Image.new("L", (side, side), 128).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    scan = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + scan * (count - data.count(b"\xff\xda")) + data[-2:]


def slow_image() -> bytes:
    """An image that is within all limits and takes two seconds of a processor."""
    return many_scans(100, 7900)

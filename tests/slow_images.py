"""Functions that make images whose files are small and whose decoding takes long."""

import io

from PIL import Image


def many_scans(count: int, side: int = 2000) -> bytes:
    """Make a progressive JPEG with `count` scans of `side` by `side` grey pixels.

    To reach this number, the last scan is repeated, which has only 14 bytes if the side is 2,000 pixels.
    """
    buffer = io.BytesIO()
    Image.new("L", (side, side), 128).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    scan = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + scan * (count - data.count(b"\xff\xda")) + data[-2:]


def slow_image() -> bytes:
    """Make a JPEG that is within all limits of jointspace and takes about two CPU seconds to decode."""
    return many_scans(100, 7900)

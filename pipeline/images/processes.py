"""Decodes untrusted images in a separate process. The process is killed if an image takes too long."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from PIL import Image

from pipeline.compute.workers import Failure, Worker, processor_limit
from pipeline.errors import InputError
from pipeline.images.decode import decode, naming_faults
from pipeline.images.opening import ImageLimits, check_size, open_image, pillow_limits

HEADER_SECONDS = 1
"""CPU seconds that the header of an upload may take: uploads wait for each other's headers."""


class ImageProcess:
    """A callable that runs `function(data)` in a process of its own. Raises InputError, which names the `key` that
    limits the pixels, if one does, where there are too many. Close it, or use it as a context manager."""

    def __init__(self, function: Callable[[bytes], Any], key: str = "") -> None:
        self._worker = Worker(function)
        self._key = key

    def __call__(self, data: bytes) -> Any:
        outcome = self._worker(data)
        if isinstance(outcome, Failure):
            too_large = self._key and outcome.reason.startswith("too-large")
            raise InputError(f"{outcome.reason} ({self._key})" if too_large else outcome.reason)
        return outcome

    def __enter__(self) -> "ImageProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()


def decoding_process(limits: ImageLimits) -> ImageProcess:
    """Runs `decode(data, limits)`."""
    return ImageProcess(partial(_decode_alone, limits))


def check_header(data: bytes, limits: ImageLimits) -> None:
    """Reads the header alone. Raises UnreadableImage as `decode` does if the bytes are not an image, or if its size is
    outside the limits."""
    too_long = f"too-slow: its header takes longer than {HEADER_SECONDS} s to read"
    with processor_limit(HEADER_SECONDS, too_long), pillow_limits(sys.maxsize), naming_faults(data, limits):
        check_size(open_image(data).size, limits)  # this names the size


def _decode_alone(limits: ImageLimits, data: bytes) -> Image.Image:
    image = decode(data, limits)
    image.info = {}  # which Pillow would write into what is made of it
    return image

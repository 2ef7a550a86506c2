"""Images of strangers in a process of its own, which one that takes too long kills."""

import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from PIL import Image

from pipeline.errors import InputError
from pipeline.images.decode import decode
from pipeline.images.opening import FORMATS, ImageLimits, check_size, too_slow
from pipeline.workers import Failure, Worker, processor_limit


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
    """Raises UnreadableImage as `decode` does for what is no image, and for one of another size than `limits` allow.
    Pixels are decoded only where the header alone does not say."""
    with processor_limit(limits.seconds, str(too_slow(limits.seconds))):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about sizes, which are compared below
                size = Image.open(io.BytesIO(data), formats=FORMATS).size
        except Exception:
            decode(data, limits)  # which says what is wrong, or reads it after all
        else:
            check_size(size, limits)


def _decode_alone(limits: ImageLimits, data: bytes) -> Image.Image:
    image = decode(data, limits)
    image.info = {}  # which Pillow would write into what is made of it
    return image

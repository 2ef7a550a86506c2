"""Bytes of a photograph to pixels, or the reason why not.

Only Pillow decodes: in other decoders one flipped bit in a PNG can kill the process. The size in the header is checked
before any pixel is decoded; a truncated file is refused, never filled up with grey.

An image may take `ImageLimits.seconds` of processor time. In a worker process (`isolated_map`, `DecodingProcess`) the
limit always applies; elsewhere it is checked when Pillow reads the next block, and at the end.
"""

import hashlib
import io
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

from PIL import Image, ImageOps, UnidentifiedImageError

from pipeline.errors import InputError, Refused
from pipeline.images import jpeg
from pipeline.worker_process import Failure, processor_limit
from pipeline.workers import Worker

# Formats of photographs. Pillow's others include EPS, which starts a PostScript interpreter.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
HEIF_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"})
"""In the first box of HEIC files, whose pixels are HEVC's. Pillow reads AVIF, which has the same container, itself."""
LONGEST_FTYP = 256
"""Bytes of that box that are looked at."""
RANGES = {"I;16": (65535,), "I": (255, 65535), "F": (1, 255)}
"""Usual greatest samples of Pillow's modes of more than 8 bits."""
PNG_END = b"IEND\xaeB`\x82"
BLOCK = 1 << 10
"""Bytes; smaller reads are of a header."""


@dataclass(frozen=True)
class ImageLimits:
    """Limits on an image: at most `max_pixels`, sides of at least `min_side`, longer / shorter side <= `max_aspect`,
    and at most `seconds` of processor time to decode it."""

    max_pixels: int
    min_side: int
    max_aspect: float
    seconds: float = math.inf

    @classmethod
    def from_settings(cls, collection: Any) -> "ImageLimits":
        """The limits in the section `collection` of a configuration."""
        pixels, side = collection.max_image_pixels, collection.min_image_side
        return cls(pixels, side, collection.max_aspect_ratio, collection.decode_seconds)


class UnreadableImage(Refused):
    """An unusable image. `reason` is not-an-image, truncated, damaged, not-finite, too-large, too-small, too-elongated,
    too-slow or needs jointspace[heif]; `detail` says more."""


def decode(data: bytes, limits: ImageLimits, side: int | None = None) -> Image.Image:
    """The first frame of an encoded image as 8-bit RGB, upright by its EXIF orientation.

    Transparent parts become white; 16-bit and floating-point samples are scaled, not clipped. With `side`, what will be
    resized so that its shorter side has so many pixels, a JPEG that is far larger comes at half, a quarter or an eighth
    of its size, which takes a fraction of the time: at the smallest of at least MARGIN times `side`. Raises
    UnreadableImage.
    """
    return decode_each(data, limits, [side])[0]


def decode_each(data: bytes, limits: ImageLimits, sides: Sequence[int | None]) -> list[Image.Image]:
    """As `decode` for each of `sides`, decoded once, at the scale that the largest needs. Where `decode` would have
    decoded smaller, pixels are averaged to that size."""
    started = time.thread_time()
    try:
        with processor_limit(limits.seconds, str(_too_slow(limits.seconds))), _pixel_limit(limits.max_pixels):
            image, factors = _load(data, limits, started, sides)
            images = jpeg.reduce(_to_rgb(image), factors)
    except UnreadableImage:
        raise
    except UnidentifiedImageError:
        start = data[:16].hex(" ") or "nothing"
        raise UnreadableImage("not-an-image", f"no {', '.join(FORMATS)}; it starts with {start}") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise UnreadableImage("too-large", f"more than {limits.max_pixels} pixels") from error
    except Exception as error:  # any failure on hostile bytes is the image's fault
        reason = "truncated" if "truncated" in str(error).lower() else "damaged"
        raise UnreadableImage(reason, f"{type(error).__name__}: {error}") from error
    if time.thread_time() - started > limits.seconds:
        raise _too_slow(limits.seconds)
    return images


def to_rgb(image: Image.Image, limits: ImageLimits) -> Image.Image:
    """An opened image as `decode` makes it of its file, untimed. Raises UnreadableImage, and as Pillow does."""
    _check_size(image.size, limits)
    return _to_rgb(image)


class DecodingProcess:
    """A callable that runs `decode(data, limits)` in a process of its own, which an image that takes too long kills.

    Raises InputError. Close it, or use it as a context manager.
    """

    def __init__(self, limits: ImageLimits) -> None:
        self._worker = Worker(partial(_decode_to_bytes, limits))

    def __call__(self, data: bytes) -> Image.Image:
        outcome = self._worker(data)
        if isinstance(outcome, Failure):
            raise InputError(outcome.reason)
        return Image.frombytes("RGB", *outcome)

    def __enter__(self) -> "DecodingProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()


class CheckingProcess:
    """A callable that runs `check_header(data, limits)` in a process of its own, for bytes of strangers. Raises
    InputError, which names the `key` that limits the pixels where there are too many."""

    def __init__(self, limits: ImageLimits, key: str) -> None:
        self._worker = Worker(partial(_check_header, limits))
        self._key = key

    def __call__(self, data: bytes) -> None:
        outcome = self._worker(data)
        if isinstance(outcome, Failure):
            raise InputError(
                f"{outcome.reason} ({self._key})" if outcome.reason.startswith("too-large") else outcome.reason
            )


def check_header(data: bytes, limits: ImageLimits) -> None:
    """Raises UnreadableImage as `decode` does for what is no image, and for one of another size than `limits` allow.
    Pixels are decoded only where the header alone does not say."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about sizes, which are compared below
            size = Image.open(io.BytesIO(data), formats=FORMATS).size
    except Exception:
        decode(data, limits)  # which says what is wrong, or reads it after all
    else:
        _check_size(size, limits)


def _check_header(limits: ImageLimits, data: bytes) -> None:
    with processor_limit(limits.seconds, str(_too_slow(limits.seconds))):
        check_header(data, limits)


def _decode_to_bytes(limits: ImageLimits, data: bytes) -> tuple[tuple[int, int], bytes]:
    image = decode(data, limits)
    return image.size, image.tobytes()


class Inspection(NamedTuple):
    """A decodable image: its size in pixels, upright, and the SHA-256 of its encoded bytes."""

    width: int
    height: int
    sha256: str


def inspect(read: Callable[..., bytes], limits: ImageLimits, location: tuple[Any, ...]) -> Inspection:
    """Read `location` and decode it fully. Raises InputError saying what is wrong with the image."""
    data = read(*location)
    return Inspection(*decode(data, limits).size, hashlib.sha256(data).hexdigest())


def _load(
    data: bytes, limits: ImageLimits, started: float, sides: Sequence[int | None]
) -> tuple[Image.Image, list[int]]:
    """The first frame, as stored, and by how much it is to be reduced for each of `sides`."""
    formats = (*FORMATS, _heif()) if _is_heif(data) else FORMATS
    image = Image.open(_Timed(data, started, limits.seconds), formats=formats)
    _check_size(image.size, limits)
    factors = [1] * len(sides)
    if image.format == "JPEG":
        if jpeg.has_more_scans(data, jpeg.MOST_SCANS):
            raise UnreadableImage("too-slow", f"a JPEG of more than {jpeg.MOST_SCANS} scans")
        factors = jpeg.draft(image, sides)
    image.load()
    # Pillow stops at the last pixel and does not notice a missing end.
    if image.format == "PNG" and data.rfind(PNG_END) < 0:
        raise UnreadableImage("truncated", "the PNG lacks its end")
    return image, factors


def _is_heif(data: bytes) -> bool:
    if data[4:8] != b"ftyp":
        return False
    box = data[8 : min(int.from_bytes(data[:4]), LONGEST_FTYP)]
    return any(box[at : at + 4] in HEIF_BRANDS for at in range(0, len(box), 4))


@cache
def _heif() -> str:
    """Have Pillow read HEIC in this process; returns its name of the format. Raises UnreadableImage."""
    try:
        import pillow_heif
    except ImportError as error:
        remedy = f"a HEIC photograph is read by {error.name}; pip install 'jointspace[heif]'"
        raise UnreadableImage("needs jointspace[heif]", remedy) from None
    pillow_heif.register_heif_opener(thumbnails=False, decode_threads=1)
    return "HEIF"


class _Timed(io.BytesIO):
    """Bytes that can be read until the thread has used `seconds` of processor time since `started`."""

    def __init__(self, data: bytes, started: float, seconds: float) -> None:
        super().__init__(data)
        self._started, self._seconds = started, seconds

    def read(self, size: int | None = -1, /) -> bytes:
        # Only blocks of pixels are timed: a header is read in dozens of small pieces.
        if (size is None or not 0 <= size < BLOCK) and time.thread_time() - self._started > self._seconds:
            raise _too_slow(self._seconds)
        return io.BytesIO.read(self, size)


def _too_slow(seconds: float) -> UnreadableImage:
    return UnreadableImage("too-slow", f"took longer than {seconds:g} s to decode (collection.decode_seconds)")


@contextmanager
def _pixel_limit(max_pixels: int) -> Iterator[None]:
    """Makes Pillow refuse, rather than warn about, images and inner frames above our limit."""
    usual = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about odd metadata, which is harmless
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        Image.MAX_IMAGE_PIXELS = max_pixels
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = usual


def _check_size(size: tuple[int, int], limits: ImageLimits) -> None:
    short, long = sorted(size)
    shape = f"{size[0]} x {size[1]} pixels"
    if short * long > limits.max_pixels:
        raise UnreadableImage("too-large", f"{shape}, more than {limits.max_pixels}")
    if short < limits.min_side:
        raise UnreadableImage("too-small", f"{shape}, a side below {limits.min_side}")
    if long > limits.max_aspect * short:
        raise UnreadableImage("too-elongated", f"{shape}, sides in a ratio above {limits.max_aspect:g}")


def _to_rgb(image: Image.Image) -> Image.Image:
    with suppress(Exception):  # damaged EXIF does not affect the pixels
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        image = _to_grey(image)
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_grey(image: Image.Image) -> Image.Image:
    """16-bit integer, 32-bit integer or float samples scaled to 8 bits, from the smallest usual range that holds
    them, or else from their own range."""
    kind = image.mode[:4]
    image = image.convert("I" if kind == "I;16" else kind).convert("F")
    if not math.isfinite(sum(memoryview(image.tobytes()).cast("f"))):
        raise UnreadableImage("not-finite", "some of its samples are NaN or infinite")
    low, high = image.getextrema()
    usual = next((top for top in RANGES[kind] if low >= 0 and high <= top), None)
    if usual:
        low, high = 0, usual
    scale = 255 / (high - low or 1)
    return image.point(lambda value: value * scale + (0.5 - low * scale)).convert("L")

"""Bytes of a photograph to pixels, or the reason why not.

Only Pillow decodes: in other decoders one flipped bit in a PNG can kill the process. The size in the header is checked
before any pixel is decoded; a truncated file is refused, never filled up with grey.

An image may take `ImageLimits.seconds` of processor time. In a worker process (`isolated_map`, `DecodingProcess`) the
limit always applies; elsewhere it is checked when Pillow reads the next block, and at the end.
"""

import hashlib
import io
import math
import re
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import Any, NamedTuple

from PIL import ExifTags, Image, ImageOps, JpegImagePlugin, PngImagePlugin, UnidentifiedImageError, features

from pipeline.errors import InputError
from pipeline.images import colour
from pipeline.images.colour import UnreadableImage
from pipeline.workers import Failure, Worker, processor_limit

# Formats of photographs. Pillow's others include EPS, which starts a PostScript interpreter.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
HEIF_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"})
"""In the first box of HEIC files, whose pixels are HEVC's. Pillow reads AVIF, which has the same container, itself."""
AVIF_BRANDS = frozenset({b"avif", b"avis"})
NEEDS_HEIF = "HEIC, read after `pip install 'jointspace[heif]'`"
NEEDS_AVIF = "AVIF, read after `pip install 'Pillow>=11.3'`"
"""Reasons that are their own remedies, for of many images only the reasons are printed, with counts."""
LONGEST_FTYP = 256
"""Bytes of that box that are looked at."""
JPEG_START = b"\xff\xd8\xff"
PNG_START, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
PNG_TEXT = (b"tEXt", b"zTXt", b"iTXt")
SHORT = 100
"""Bytes of a chunk that hold the name of a profile, and little of the profile."""
LONGEST_EXIF = 100
"""Characters of the name of a camera."""
BLOCK = 1 << 10
"""Bytes; smaller reads are of a header."""
LEAST_SIDE = 8
"""Pixels of the shorter side of an image that a collection may have."""
GREATEST_ASPECT = 20
"""Its longer side over its shorter."""


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
        return cls(collection.max_image_pixels, LEAST_SIDE, GREATEST_ASPECT, collection.decode_seconds)


def decode(data: bytes, limits: ImageLimits, side: int | None = None) -> Image.Image:
    """The first frame of an encoded image as 8-bit RGB, upright by its EXIF orientation.

    Transparent parts become white; colours become those of sRGB by an embedded profile; 16-bit and floating-point
    samples are scaled, not clipped. With `side`, what will be
    resized so that its shorter side has so many pixels, a JPEG that is far larger comes at half, a quarter or an eighth
    of its size, which takes a fraction of the time: at the smallest of at least MARGIN times `side`. Raises
    UnreadableImage.
    """
    return decode_each(data, limits, [side])[0]


def decode_each(data: bytes, limits: ImageLimits, sides: Sequence[int | None]) -> list[Image.Image]:
    """As `decode` for each of `sides`, decoded once, at the scale that the largest needs. Where `decode` would have
    decoded smaller, pixels are averaged to that size."""
    return _decode(data, limits, sides)[0]


def _decode(
    data: bytes, limits: ImageLimits, sides: Sequence[int | None], colours: bool = True
) -> tuple[list[Image.Image], list[str]]:
    """The images of `decode_each`, without `colours` in their own colours, and notes on how they were read."""
    started = time.thread_time()
    try:
        with processor_limit(limits.seconds, str(_too_slow(limits.seconds))), _pillow_limits(limits.max_pixels):
            loaded = _load(data, limits, started, sides)
            image, notes = _to_rgb(loaded.image, colours, loaded.top)
            reduced = {factor: image.reduce(factor) if factor > 1 else image for factor in set(loaded.factors)}
            images = [reduced[factor] for factor in loaded.factors]
    except UnreadableImage:
        raise
    except UnidentifiedImageError:
        if _brands(data) & AVIF_BRANDS and not features.check("avif"):
            raise UnreadableImage(NEEDS_AVIF, "this Pillow cannot read it") from None
        start = data[:16].hex(" ") or "nothing"
        raise UnreadableImage("not-an-image", f"no {', '.join(FORMATS)}; it starts with {start}") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise UnreadableImage("too-large", f"more than {limits.max_pixels} pixels") from error
    except Exception as error:  # any failure on hostile bytes is the image's fault
        reason = "truncated" if "truncated" in str(error).lower() else "damaged"
        raise UnreadableImage(reason, f"{type(error).__name__}: {error}") from error
    if time.thread_time() - started > limits.seconds:
        raise _too_slow(limits.seconds)
    return images, notes


def to_rgb(image: Image.Image, limits: ImageLimits) -> Image.Image:
    """An opened image as `decode` makes it of its file, untimed. Raises UnreadableImage, and as Pillow does."""
    _check_size(image.size, limits)
    return _to_rgb(image)[0]


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
    """A decodable image: its size in pixels, upright (None for a vector in its place), the SHA-256 of its bytes,
    notes on how it was read, which are counted, and what its camera wrote into it: when it was `taken`, in ISO 8601,
    and the `camera`."""

    width: int | None
    height: int | None
    sha256: str
    notes: Sequence[str] = ()
    taken: str | None = None
    camera: str | None = None


def inspect(read: Callable[..., bytes], limits: ImageLimits, location: tuple[Any, ...]) -> Inspection:
    """Read `location` and decode it fully. Raises InputError saying what is wrong with the image."""
    data = read(*location)
    (image,), notes = _decode(data, limits, [None], colours=False)  # a large profile takes longer than the pixels
    return Inspection(*image.size, hashlib.sha256(data).hexdigest(), notes, *_read_exif(data, limits))


def _read_exif(data: bytes, limits: ImageLimits) -> tuple[str | None, str | None]:
    """When a photograph was taken, and by which camera; None for each that it does not say."""
    taken, camera = None, None
    # Damaged EXIF does not affect the pixels.
    in_time = processor_limit(limits.seconds, str(_too_slow(limits.seconds)))
    with suppress(Exception), in_time, _pillow_limits(limits.max_pixels):
        exif = _open(io.BytesIO(data), data).getexif()
        inner = exif.get_ifd(ExifTags.IFD.Exif)
        maker, model = (_exif_text(exif.get(tag)) for tag in (ExifTags.Base.Make, ExifTags.Base.Model))
        camera = " ".join(filter(None, (None if model.startswith(maker) else maker, model))) or None
        times = (inner.get(ExifTags.Base.DateTimeOriginal), inner.get(ExifTags.Base.DateTimeDigitized))
        for text in map(_exif_text, (*times, exif.get(ExifTags.Base.DateTime))):
            with suppress(ValueError):  # zeros or blanks, of a camera whose clock was not set
                return datetime.strptime(text, "%Y:%m:%d %H:%M:%S").isoformat(), camera
    return taken, camera


def _exif_text(value: Any) -> str:
    """A text of EXIF without what pads it; nothing where it is no printable one."""
    text = value.partition("\0")[0].strip() if isinstance(value, str) else ""
    return text if text.isprintable() and len(text) <= LONGEST_EXIF else ""


class _Loaded(NamedTuple):
    """The first frame, as stored, by how much it is to be reduced for each side that was asked for, and the greatest
    sample from which its colours were scaled, if that is less than usual."""

    image: Image.Image
    factors: list[int]
    top: int | None = None


def _load(data: bytes, limits: ImageLimits, started: float, sides: Sequence[int | None]) -> _Loaded:
    try:
        loaded = _load_file(data, limits, started, sides)
    except ValueError:  # Pillow refuses more text, or a larger profile, than it would like to keep
        bare = _without_text(data)
        if len(bare) == len(data):
            raise
        loaded = _load_file(bare, limits, started, sides)
    # Pillow stops at the last pixel and does not notice a missing end.
    if loaded.image.format == "PNG" and data.rfind(PNG_END) < 0:
        raise UnreadableImage("truncated", "the PNG lacks its end")
    return loaded


def _load_file(data: bytes, limits: ImageLimits, started: float, sides: Sequence[int | None]) -> _Loaded:
    image = _open(_Timed(data, started, limits.seconds), data)
    _check_size(image.size, limits)
    factors = [1] * len(sides)
    if image.format == "JPEG":
        if has_more_scans(data, MOST_SCANS):
            raise UnreadableImage("too-slow", f"a JPEG of more than {MOST_SCANS} scans")
        factors = draft_jpeg(image, sides)
    lower = colour.lower_bytes(image)
    image.load()
    if lower and colour.is_dark(image):
        less = _open(_Timed(data, started, limits.seconds), data)
        less.tile = lower
        less.load()
        image, top = colour.scale_colours(image, less)
        return _Loaded(image, factors, top)
    return _Loaded(image, factors)


def _open(file: io.BytesIO, data: bytes) -> Image.Image:
    """The image with its header read. Of an MPO, which is a JPEG with further pictures behind it, the JPEG."""
    if data.startswith(JPEG_START):
        with suppress(SyntaxError):
            return JpegImagePlugin.JpegImageFile(file)
    return Image.open(file, formats=(*FORMATS, _heif()) if _brands(data) & HEIF_BRANDS else FORMATS)


def _without_text(data: bytes) -> bytes:
    """A PNG without its texts, and with the mere start of a profile larger than LARGEST_PROFILE, which is then found to
    be broken; other data as they are."""
    if not data.startswith(PNG_START):
        return data
    kept, at = [PNG_START], len(PNG_START)
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4])
        name, body = data[at + 4 : at + 8], data[at + 8 : end - 4]
        if name == b"iCCP" and _is_large(body.partition(b"\0")[2][1:]):
            body = body[:SHORT]
            kept += (len(body).to_bytes(4), name, body, zlib.crc32(name + body).to_bytes(4))
        elif name not in PNG_TEXT:
            kept.append(data[at:end])
        at = end
    return b"".join(kept)


def _is_large(compressed: bytes) -> bool:
    decompressor = zlib.decompressobj()
    with suppress(zlib.error):  # Pillow ignores it
        decompressor.decompress(compressed, colour.LARGEST_PROFILE)
    return bool(decompressor.unconsumed_tail)


def _brands(data: bytes) -> frozenset[bytes]:
    """What the first box of HEIC, AVIF and MP4 files calls their contents."""
    if data[4:8] != b"ftyp":
        return frozenset()
    box = data[8 : min(int.from_bytes(data[:4]), LONGEST_FTYP)]
    return frozenset(box[at : at + 4] for at in range(0, len(box), 4))


@cache
def _heif() -> str:
    """Have Pillow read HEIC in this process; returns its name of the format. Raises UnreadableImage."""
    try:
        import pillow_heif
    except ImportError as error:
        raise UnreadableImage(NEEDS_HEIF, f"{error.name} is not installed") from None
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
def _pillow_limits(max_pixels: int) -> Iterator[None]:
    """Makes Pillow refuse, rather than warn about, images and inner frames above our limit, and read large profiles."""
    pixels, text = Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about odd metadata, which is harmless
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK = max_pixels, colour.LARGEST_PROFILE
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK = pixels, text


def _check_size(size: tuple[int, int], limits: ImageLimits) -> None:
    short, long = sorted(size)
    shape = f"{size[0]} x {size[1]} pixels"
    if short * long > limits.max_pixels:
        raise UnreadableImage("too-large", f"{shape}, more than {limits.max_pixels}")
    if short < limits.min_side:
        raise UnreadableImage("too-small", f"{shape}, a side below {limits.min_side}")
    if long > limits.max_aspect * short:
        raise UnreadableImage("too-elongated", f"{shape}, sides in a ratio above {limits.max_aspect:g}")


def _to_rgb(image: Image.Image, colours: bool = True, top: int | None = None) -> tuple[Image.Image, list[str]]:
    """An image of any mode as 8-bit sRGB, without `colours` as 8-bit RGB, upright, on white; and notes on how it was
    read, of whose samples `top` was the greatest if it has been scaled from there."""
    notes = []
    with suppress(Exception):  # damaged EXIF does not affect the pixels
        image = ImageOps.exif_transpose(image)
    conversion = colour.find_conversion(image)
    if conversion.broken:
        notes.append(colour.BROKEN)
    if image.mode.startswith(("I", "F")):
        image, top = colour.scale_samples(image)
    if top:
        notes.append(f"have more than 8 bits a sample and no sample above {top}: they are scaled from 0 to {top}")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    if conversion.transform and colours:
        return conversion.transform.apply(_in_mode(image, conversion.mode)), notes
    return _in_mode(image, "RGB"), notes


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    return image if image.mode == mode else image.convert(mode)


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
    while (marker := MARKER.search(data, at)) and marker[1][0] != END:
        at = marker.end() + int.from_bytes(data[marker.end() : marker.end() + 2])
        scans += marker[1][0] == SCAN
        if scans > most:
            return True
    return False


def draft_jpeg(image: Image.Image, sides: Sequence[int | None]) -> list[int]:
    """Have an opened JPEG decoded as small as the largest of `sides` allows (None: whole); returns by how much the
    decoded image is to be reduced to be as small as each allows."""
    drafts = [_jpeg_scale(image.size, side) for side in sides]
    scale, asked = min(drafts)
    if image.draft(None, asked) is None:
        return [1] * len(sides)
    return [wanted // scale for wanted, _ in drafts]


def _jpeg_scale(size: tuple[int, int], side: int | None) -> tuple[int, tuple[int, int]]:
    """By how much a JPEG of this `size` is decoded smaller for `side`, and the size that Pillow is asked for."""
    least = 1 if side is None else MARGIN * side / min(size)
    asked = tuple(math.ceil(least * length) for length in size)
    fits = min(length // part for length, part in zip(size, asked, strict=True))
    return max(scale for scale in DRAFTS if scale <= max(1, fits)), asked

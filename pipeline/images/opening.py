"""Bytes of a stranger to the first frame as it is stored, by Pillow, within limits.

Only Pillow decodes: in other decoders one flipped bit in a PNG can kill the process. The size in the header is checked
before any pixel is decoded; a truncated file is refused, never filled up with grey.
"""

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from PIL import Image, JpegImagePlugin, PngImagePlugin, TiffImagePlugin

from pipeline.compute.workers import memory_limit
from pipeline.images import colour, tiff
from pipeline.images.colour import UnreadableImage

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
PNG_START = b"\x89PNG"
MOST_PROFILES = 4
"""Colour profiles in a PNG. One is allowed, and Pillow unpacks all of them, each up to MOST_TEXT bytes."""
PNG_END = b"IEND\xaeB`\x82"
MOST_TEXT = 128 << 20
"""Bytes of texts or of a profile to which a PNG may unpack; editors have written tens of megabytes."""
LEAST_SIDE = 8
"""Pixels of the shorter side of an image that a collection may have."""
BASE_BYTES = 64 << 20
BYTES_PER_PIXEL = 64
"""Memory that decoding may take, in a worker process, by the size in the header: the size inside may be another. Codecs
take up to 20 bytes per pixel."""
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


class Loaded(NamedTuple):
    """The first frame as it is stored, the factor by which it is to be reduced for each side that was asked for, and a
    note on how its samples were read, if there is one."""

    image: Image.Image
    factors: list[int]
    note: str | None = None


def load(data: bytes, limits: ImageLimits, sides: Sequence[int | None]) -> Loaded:
    """Decodes an encoded image, a JPEG as small as the largest of `sides` allows (None: whole). Raises UnreadableImage,
    and whatever Pillow raises."""
    image = open_image(data)
    check_size(image.size, limits)
    pixels = math.prod(image.size)  # a JPEG that is decoded smaller still needs memory for its whole size
    factors = [1] * len(sides)
    if image.format == "JPEG":
        if has_more_scans(data, MOST_SCANS):
            raise UnreadableImage("too-slow", f"a JPEG of more than {MOST_SCANS} scans")
        factors = draft_jpeg(image, sides)
    tags = image.tag_v2 if isinstance(image, TiffImagePlugin.TiffImageFile) else None
    if tags and tags.get(322, 0) * tags.get(323, 0) > limits.max_pixels:
        raise UnreadableImage("too-large", f"tiles of more than {limits.max_pixels} pixels")
    lower = colour.lower_bytes(image)
    texts = 5 * MOST_TEXT if image.format == "PNG" else 0  # they may follow its pixels, and Pillow copies them
    with memory_limit(BASE_BYTES + texts + BYTES_PER_PIXEL * pixels):
        try:
            image.load()
        except (OSError, RuntimeError):
            bytearray(8 * pixels)  # raises MemoryError if memory was lacking, which libjpeg calls damage
            raise
    # Pillow stops at the last pixel and does not notice a missing end.
    if image.format == "PNG" and data.rfind(PNG_END) < 0:
        raise UnreadableImage("truncated", "the PNG lacks its end")
    note = None
    if lower and colour.is_dark(image):
        if tags and tags.get(284) == 2:  # Pillow returns only the upper bytes of such planes
            raise tiff.Layout.from_tags(tags).refuse(", samples of only 12 or 14 bits")
        less = open_image(data)
        less.tile = lower
        less.load()
        image, note = colour.scale_colours(image, less)
    if tags:
        image, other = tiff.to_8_bits(image, tags)
        note = note or other
    return Loaded(image, factors, note)


def open_image(data: bytes) -> Image.Image:
    """Reads the header of an image. An MPO is a JPEG with further pictures behind it, and is opened as the JPEG. Raises
    UnreadableImage, and whatever Pillow raises."""
    if data.startswith(tiff.STARTS):
        return tiff.open_tiff(data)
    if data.startswith(PNG_START) and data.count(b"iCCP") > MOST_PROFILES:
        raise UnreadableImage("damaged", f"a PNG with more than {MOST_PROFILES} colour profiles")
    if data.startswith(JPEG_START):
        with suppress(SyntaxError):
            return JpegImagePlugin.JpegImageFile(io.BytesIO(data))
    return Image.open(io.BytesIO(data), formats=(*FORMATS, _heif()) if brands(data) & HEIF_BRANDS else FORMATS)


def brands(data: bytes) -> frozenset[bytes]:
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


def too_slow(seconds: float) -> UnreadableImage:
    return UnreadableImage("too-slow", f"took longer than {seconds:g} s to decode (collection.decode_seconds)")


@contextmanager
def pillow_limits(max_pixels: int) -> Iterator[None]:
    """Makes Pillow refuse, rather than warn about, images and inner frames above our limit, and read long texts."""
    before = Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about odd metadata, which is harmless
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        Image.MAX_IMAGE_PIXELS = max_pixels
        PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = MOST_TEXT
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY = before


def check_size(size: tuple[int, int], limits: ImageLimits) -> None:
    short, long = sorted(size)
    shape = f"{size[0]} x {size[1]} pixels"
    if short * long > limits.max_pixels:
        raise UnreadableImage("too-large", f"{shape}, more than {limits.max_pixels}")
    if short < limits.min_side:
        raise UnreadableImage("too-small", f"{shape}, a side below {limits.min_side}")
    if long > limits.max_aspect * short:
        raise UnreadableImage("too-elongated", f"{shape}, sides in a ratio above {limits.max_aspect:g}")


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

"""Bytes of a photograph to pixels, or the reason why not.

An image may take `ImageLimits.seconds` of processor time. A worker process (`isolated_map`, `ImageProcess`) is ended
then; elsewhere an image that has taken longer is refused afterwards.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, NamedTuple

from PIL import ExifTags, Image, ImageOps, IptcImagePlugin, UnidentifiedImageError, features

from pipeline.compute.workers import OUT_OF_MEMORY, processor_limit
from pipeline.images import colour
from pipeline.images.colour import UnreadableImage
from pipeline.images.opening import (
    AVIF_BRANDS,
    FORMATS,
    JPEG_START,
    NEEDS_AVIF,
    PNG_START,
    ImageLimits,
    brands,
    check_size,
    load,
    open_image,
    pillow_limits,
    too_slow,
)

STARTS = {"JPEG": JPEG_START, "PNG": PNG_START, "GIF": b"GIF8"}
LACKING = "decoding it takes more memory than there is, or than a photo of its size may take"
LONGEST_EXIF = 100
"""Characters of the name of a camera."""
IPTC_CAPTION = (2, 120)
LEAST_WORDS = 3
STOCK = re.compile("digital (still )?camera|(created|generated|edited) (with|by|using)", re.IGNORECASE)
"""In descriptions that no person wrote, such as OLYMPUS DIGITAL CAMERA."""


def decode(data: bytes, limits: ImageLimits, side: int | None = None) -> Image.Image:
    """The first frame of an encoded image as 8-bit RGB, upright by its EXIF orientation.

    Transparent parts become white; colours become those of sRGB by an embedded profile; 16-bit and floating-point
    samples are scaled, not clipped. With `side`, to which its shorter side will be resized, a JPEG that is far larger
    comes at half, a quarter or an eighth of its size, which takes a fraction of the time: at the smallest of at least
    MARGIN times `side`. Raises UnreadableImage.
    """
    return decode_each(data, limits, [side])[0]


def decode_each(data: bytes, limits: ImageLimits, sides: Sequence[int | None]) -> list[Image.Image]:
    """As `decode` for each of `sides`, decoded once, at the scale that the largest needs. Where `decode` would have
    decoded smaller, pixels are averaged to that size."""
    return _decode(data, limits, sides)[0]


def _decode(
    data: bytes, limits: ImageLimits, sides: Sequence[int | None], colours: bool = True
) -> tuple[list[Image.Image], list[str]]:
    """Decodes the images of `decode_each`, without `colours` in their own colours. Returns them with notes on how they
    were read."""
    started = time.thread_time()
    in_time = processor_limit(limits.seconds, str(too_slow(limits.seconds)))
    with in_time, pillow_limits(limits.max_pixels), naming_faults(data, limits):
        loaded = load(data, limits, sides)
        image, notes = _to_rgb(loaded.image, colours, loaded.note)
        reduced = {factor: image.reduce(factor) if factor > 1 else image for factor in set(loaded.factors)}
        images = [reduced[factor] for factor in loaded.factors]
    if time.thread_time() - started > limits.seconds:
        raise too_slow(limits.seconds)
    return images, notes


@contextmanager
def naming_faults(data: bytes, limits: ImageLimits) -> Iterator[None]:
    """Raises UnreadableImage for whatever the block raises when it reads the image `data`."""
    try:
        yield
    except UnreadableImage:
        raise
    except UnidentifiedImageError:
        if brands(data) & AVIF_BRANDS and not features.check("avif"):
            raise UnreadableImage(NEEDS_AVIF, "this Pillow cannot read it") from None
        for kind, start in STARTS.items():
            if data.startswith(start):
                raise UnreadableImage("damaged", f"a {kind} whose header cannot be read") from None
        start = f"it starts with {ascii(data[:16])[1:]}" if data else "it is empty"
        raise UnreadableImage("not-an-image", f"no {', '.join(FORMATS)}; {start}") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise UnreadableImage("too-large", f"more than {limits.max_pixels} pixels") from error
    except Exception as error:  # any other failure on hostile bytes is the image's fault
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError) or "out of memory" in text.lower():  # as libavif's errors say
            raise UnreadableImage(OUT_OF_MEMORY, LACKING) from error
        raise UnreadableImage("truncated" if "truncated" in text.lower() else "damaged", text) from error


def to_rgb(image: Image.Image, limits: ImageLimits) -> Image.Image:
    """An opened image as `decode` makes it of its file, untimed. Raises UnreadableImage, and as Pillow does."""
    check_size(image.size, limits)
    return _to_rgb(image)[0]


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
    in_time = processor_limit(limits.seconds, str(too_slow(limits.seconds)))
    with suppress(Exception), in_time, pillow_limits(limits.max_pixels):
        exif = open_image(data).getexif()
        inner = exif.get_ifd(ExifTags.IFD.Exif)
        maker, model = (_exif_text(exif.get(tag)) for tag in (ExifTags.Base.Make, ExifTags.Base.Model))
        camera = " ".join(filter(None, (None if model.startswith(maker) else maker, model))) or None
        times = (inner.get(ExifTags.Base.DateTimeOriginal), inner.get(ExifTags.Base.DateTimeDigitized))
        for text in map(_exif_text, (*times, exif.get(ExifTags.Base.DateTime))):
            with suppress(ValueError):  # zeros or blanks, of a camera whose clock was not set
                return datetime.strptime(text, "%Y:%m:%d %H:%M:%S").isoformat(), camera
    return taken, camera


def written_description(data: bytes, limits: ImageLimits) -> str:
    """What a person has written into a photograph by EXIF or IPTC: some words that are not a camera's or a program's;
    "" where there are none."""
    with suppress(Exception), pillow_limits(limits.max_pixels):
        image = open_image(data)
        iptc = (IptcImagePlugin.getiptcinfo(image) or {}).get(IPTC_CAPTION, b"").decode(errors="replace")
        for text in (image.getexif().get(ExifTags.Base.ImageDescription, ""), iptc):
            if len(text.split()) >= LEAST_WORDS and not STOCK.search(text):
                return text
    return ""


def _exif_text(value: Any) -> str:
    """A text of EXIF without what pads it; nothing where it is no printable one."""
    text = value.partition("\0")[0].strip() if isinstance(value, str) else ""
    return text if text.isprintable() and len(text) <= LONGEST_EXIF else ""


def _to_rgb(image: Image.Image, colours: bool = True, note: str | None = None) -> tuple[Image.Image, list[str]]:
    """Converts an image of any mode to 8-bit sRGB, without `colours` to 8-bit RGB, upright, on white. Returns it with
    notes on how it was read, among them the `note` of its loading."""
    with suppress(Exception):  # damaged EXIF does not affect the pixels
        image = ImageOps.exif_transpose(image)
    conversion = colour.find_conversion(image)
    if image.mode.startswith(("I", "F")):
        image, note = colour.scale_samples(image)
    notes = [one for one in (colour.BROKEN if conversion.broken else None, note) if one]
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    if conversion.transform and colours:
        return conversion.transform.apply(_in_mode(image, conversion.mode)), notes
    return _in_mode(image, "RGB"), notes


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    return image if image.mode == mode else image.convert(mode)

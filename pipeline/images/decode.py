"""Decodes the bytes of a photo to pixels, or says why the bytes cannot be decoded.

An image may take `ImageLimits.seconds` of CPU time. A worker process (`isolated_map`, `ImageProcess`) that needs more
time is ended. In other processes, an image that has taken more time is rejected after it was decoded.
"""

import hashlib
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from PIL import ExifTags, Image, IptcImagePlugin, UnidentifiedImageError, features

from pipeline.compute.worker_process import OUT_OF_MEMORY, Failure, memory_limit, processor_limit, silent_library
from pipeline.compute.workers import Worker
from pipeline.errors import InputError
from pipeline.images import colour, opening
from pipeline.images.colour import UnreadableImage
from pipeline.images.opening import ImageLimits

Result = TypeVar("Result")

FIRST_BYTES = {"JPEG": opening.JPEG_START, "PNG": opening.PNG_START, "GIF": b"GIF8"}
LACKS_MEMORY = "decoding the photo takes more memory than is free, or than a photo of this size may take"
MAX_EXIF_CHARACTERS = 100
"""Largest number of characters of the name of a camera, or of a time, in EXIF. A longer text is ignored."""
SIDEWAYS = (5, 6, 7, 8)
"""The EXIF orientations that exchange width and height."""
UPRIGHT: Mapping[Any, Image.Transpose] = {  # Any: some cameras store the orientation as a fraction or float
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip
"""The operation that turns an image upright, by its EXIF orientation."""
ORIENTED = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")
"""The keys of `Image.info` that may contain the orientation."""
IPTC_CAPTION = (2, 120)
"""The IPTC dataset that holds the description of a photo."""
MIN_DESCRIPTION_WORDS = 3
"""Smallest number of words of a description inside a file. A shorter description is ignored."""
STOCK_DESCRIPTION = re.compile("digital (still )?camera|(created|generated|edited) (with|by|using)", re.IGNORECASE)
"""Pattern of words in descriptions that a camera or a program wrote, such as OLYMPUS DIGITAL CAMERA."""
RGB = 3
"""The mode of torchvision's decoder in which it returns three colours."""
MAX_HEADER_SECONDS = 1
"""CPU seconds that the header of an upload may take. An upload whose header takes longer is refused, because uploads
wait for each other's headers."""


def decode(data: bytes, limits: ImageLimits, side: int | None = None) -> Image.Image:
    """Decode the first frame of an image as 8-bit RGB, upright by its EXIF orientation.

    Transparent parts become white, an embedded profile is converted to sRGB, and 16-bit and floating-point samples are
    scaled, not clipped. `side` is the number of pixels to which the shorter side will be resized. A JPEG that is far
    larger is decoded at half, a quarter or an eighth of its size, which takes a fraction of the time. The smallest of
    these sizes is used at which the shorter side still has at least MARGIN times `side` pixels. Raises UnreadableImage
    if the image cannot be decoded within the `limits`.
    """
    return decode_each(data, limits, [side])[0]


def decode_each(data: bytes, limits: ImageLimits, sides: Sequence[int | None]) -> list[Image.Image]:
    """Decode an image once, and return one image for each of `sides`. `decode` describes the arguments.

    The image is decoded at the scale that the largest side needs. For smaller sides, the decoded image is reduced by
    averaging its pixels.
    """
    return _decode(data, limits, sides)[0]


def decode_pixels(data: bytes, limits: ImageLimits, sides: Sequence[int | None]) -> list[Image.Image | np.ndarray]:
    """Decode an image as `decode_each` does. Return Pillow images, or arrays (height, width, 3) uint8 of their pixels.

    Most JPEGs that are needed at their whole size are decoded to arrays by torchvision, which is faster. All other
    images are decoded by Pillow. Pillow also decodes a JPEG that torchvision cannot decode, because Pillow describes
    the fault. Raises UnreadableImage as `decode` does.
    """
    started = time.thread_time()
    pixels = None
    if data.startswith(opening.JPEG_START) and (decode_jpeg := _jpeg_decoder()):
        in_time = processor_limit(limits.seconds, str(opening.too_slow(limits.seconds)))
        with suppress(Exception), in_time, opening.pillow_limits(limits.max_pixels):
            pixels = _decode_plain_jpeg(data, limits, sides, decode_jpeg)
    if time.thread_time() - started > limits.seconds:
        raise opening.too_slow(limits.seconds)
    return [*decode_each(data, limits, sides)] if pixels is None else [pixels] * len(sides)


def _decode_plain_jpeg(
    data: bytes, limits: ImageLimits, sides: Sequence[int | None], decode_jpeg: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray | None:
    """Decode a JPEG with torchvision's `decode_jpeg` to (height, width, 3) uint8, or return None.

    The result is None unless the JPEG is in RGB, upright and in sRGB, is needed at its whole size, and has at most
    MAX_SCANS scans.
    """
    image = opening.open_image(data)
    size = image.size
    opening.check_size(size, limits)
    is_small = set(opening.draft_jpeg(image, sides)) == {1} and image.size == size
    is_upright = image.getexif().get(ExifTags.Base.Orientation, 1) == 1
    if image.mode != "RGB" or not is_small or not is_upright or colour.find_conversion(image).transform:
        return None
    if opening.has_more_scans(data, opening.MAX_SCANS):
        return None
    # torchvision lets libjpeg write a line without the name of the photo for each photo with a small fault.
    with memory_limit(opening.BASE_BYTES + opening.BYTES_PER_PIXEL * math.prod(size)), silent_library():
        pixels = decode_jpeg(np.frombuffer(data, np.uint8))
    return pixels if pixels.shape == (*size[::-1], 3) else None


@cache
def _jpeg_decoder() -> Callable[[np.ndarray], np.ndarray] | None:
    """Return torchvision's decoder of JPEGs to RGB, or None if there is none.

    Only the library with the decoder is loaded, because the import of the package torchvision takes seconds.
    """
    import torch

    try:
        spec = find_spec("torchvision")
        assert spec is not None and spec.origin is not None
        for library in Path(spec.origin).parent.glob("image*.so"):
            torch.ops.load_library(library)
        read = torch.ops.image.decode_jpeg.default
    except (AssertionError, OSError, AttributeError):
        return None
    return lambda data: read(torch.from_numpy(data.copy()), RGB, False).permute(1, 2, 0).numpy()


def _decode(
    data: bytes, limits: ImageLimits, sides: Sequence[int | None], colours: bool = True
) -> tuple[list[Image.Image], list[str]]:
    """Return the images of `decode_each`, and notes on how the image was read.

    If `colours` is false, the colours are not converted to sRGB.
    """
    started = time.thread_time()
    in_time = processor_limit(limits.seconds, str(opening.too_slow(limits.seconds)))
    with in_time, opening.pillow_limits(limits.max_pixels), naming_faults(data, limits):
        loaded = opening.load(data, limits, sides)
        image, notes = _to_rgb(loaded.image, colours, loaded.note)
        reduced = {factor: image.reduce(factor) if factor > 1 else image for factor in set(loaded.factors)}
        images = [reduced[factor] for factor in loaded.factors]
    if time.thread_time() - started > limits.seconds:
        raise opening.too_slow(limits.seconds)
    return images, notes


@contextmanager
def naming_faults(data: bytes, limits: ImageLimits) -> Iterator[None]:
    """Convert every exception of the `with` block, which reads the image `data`, to an UnreadableImage."""
    try:
        yield
    except UnreadableImage:
        raise
    except UnidentifiedImageError:
        if opening.brands(data) & opening.AVIF_BRANDS and not features.check("avif"):
            raise UnreadableImage(opening.NEEDS_AVIF, "the installed Pillow cannot read AVIF") from None
        for kind, start in FIRST_BYTES.items():
            if data.startswith(start):
                raise UnreadableImage(
                    "damaged", f"the header of this {kind} cannot be read. Copy the file again"
                ) from None
        start = f"it starts with {ascii(data[:16])[1:]}" if data else "it is empty"
        known = f"{', '.join(opening.FORMATS[:-1])} or {opening.FORMATS[-1]}"
        raise UnreadableImage("not-an-image", f"the file is not {known}, since {start}. Convert or remove it") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise UnreadableImage(
            "too-large",
            f"the photo or one of its frames has more pixels than {opening.PIXELS_KEY} allows, {limits.max_pixels}",
        ) from error
    except Exception as error:  # Any other error on hostile bytes is caused by the image.
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError) or "out of memory" in text.lower():  # The errors of libavif have these words.
            raise UnreadableImage(OUT_OF_MEMORY, LACKS_MEMORY) from error
        raise UnreadableImage("truncated" if "truncated" in text.lower() else "damaged", text) from error


def to_rgb(image: Image.Image, limits: ImageLimits) -> Image.Image:
    """Convert an opened image as `decode` does, without a time limit.

    Raises UnreadableImage if the size of the image is outside the `limits`, or if a sample is not finite. Pillow's
    errors are not converted.
    """
    opening.check_size(image.size, limits)
    return _to_rgb(image)[0]


class Inspection(NamedTuple):
    """A decodable image: its upright size in pixels, the SHA-256 of its bytes, notes on how the image was read, the
    time at which it was `taken` in ISO 8601, and the name of the `camera`.

    Time and camera are None if the image does not state them. In a collection of vectors, which has no images, the size
    is None.
    """

    width: int | None
    height: int | None
    sha256: str
    notes: Sequence[str] = ()
    taken: str | None = None
    camera: str | None = None


def inspect(
    read: Callable[..., bytes], limits: ImageLimits, location: tuple[str, int | None, int | None]
) -> Inspection:
    """Read the image at `location` and decode all of its data.

    `read(*location)` returns the bytes at a location (path, offset, size). Raises InputError, which describes the
    fault, if the image cannot be read or decoded.

    A JPEG is decoded at an eighth of its size, unless it is tiny. This also reads all of the data and finds the same
    damage, in less time.
    """
    data = read(*location)
    # Colours are not converted, because that takes longer than decoding if the colour profile is large.
    (image,), notes = _decode(data, limits, [1], colours=False)
    size, *photographed = _read_header(data, limits)
    is_smaller = data.startswith(opening.JPEG_START)
    return Inspection(*(size if is_smaller else image.size), hashlib.sha256(data).hexdigest(), notes, *photographed)


def _read_header(data: bytes, limits: ImageLimits) -> tuple[tuple[int, int], str | None, str | None]:
    """Return the upright size (width, height) of a photo in pixels, the time in ISO 8601 at which it was taken, and the
    name of its camera.

    The time and the camera are None if the photo does not state them. No error is raised for a damaged header. The size
    is (0, 0) if it cannot be read.
    """
    size = (0, 0)
    taken = None
    camera = None
    # Damaged EXIF does not affect the pixels, so all errors of the header are ignored here.
    in_time = processor_limit(limits.seconds, str(opening.too_slow(limits.seconds)))
    with suppress(Exception), in_time, opening.pillow_limits(limits.max_pixels):
        image = opening.open_image(data)
        size = image.size
        exif = image.getexif()
        if exif.get(ExifTags.Base.Orientation) in SIDEWAYS:
            size = size[1], size[0]
        inner = exif.get_ifd(ExifTags.IFD.Exif)
        maker, model = (_exif_text(exif.get(tag)) for tag in (ExifTags.Base.Make, ExifTags.Base.Model))
        camera = " ".join(filter(None, (None if model.startswith(maker) else maker, model))) or None
        times = (inner.get(ExifTags.Base.DateTimeOriginal), inner.get(ExifTags.Base.DateTimeDigitized))
        for text in map(_exif_text, (*times, exif.get(ExifTags.Base.DateTime))):
            # The time has zeros or blanks if the clock of the camera was not set.
            with suppress(ValueError):
                return size, datetime.strptime(text, "%Y:%m:%d %H:%M:%S").isoformat(), camera
    return size, taken, camera


def written_description(data: bytes, limits: ImageLimits) -> str:
    """Return the description that a person has written into a photo, in EXIF or else in IPTC, or "" if there is none.

    Descriptions with fewer than MIN_DESCRIPTION_WORDS words, and descriptions by cameras and programs, do not count.
    """
    with suppress(Exception), opening.pillow_limits(limits.max_pixels):
        image = opening.open_image(data)
        captions = (IptcImagePlugin.getiptcinfo(image) or {}).get(IPTC_CAPTION, b"")
        caption = captions[0] if isinstance(captions, list) else captions
        for text in (image.getexif().get(ExifTags.Base.ImageDescription, ""), caption.decode(errors="replace")):
            if len(text.split()) >= MIN_DESCRIPTION_WORDS and not STOCK_DESCRIPTION.search(text):
                return text
    return ""


def _exif_text(value: object) -> str:
    """Return a text of EXIF without its padding, or "" if it is not a printable text, or is longer than
    MAX_EXIF_CHARACTERS."""
    text = value.partition("\0")[0].strip() if isinstance(value, str) else ""
    return text if text.isprintable() and len(text) <= MAX_EXIF_CHARACTERS else ""


def _to_rgb(image: Image.Image, colours: bool = True, note: str | None = None) -> tuple[Image.Image, list[str]]:
    """Convert an image of any mode to 8-bit sRGB, upright and on white. Return the image, and notes on how it was read.

    If `colours` is false, the result is 8-bit RGB, and the colour profile is not applied. `note` is the note that
    `opening.load` has returned, and is one of the returned notes.
    """
    image = _turn_upright(image)
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


def _turn_upright(image: Image.Image) -> Image.Image:
    """Return an image upright by its EXIF orientation, or the image itself if it need not be turned, or if its
    orientation is missing or cannot be read. An image that was turned has no orientation any more.

    Pillow's own function also writes the EXIF data again, which fails for some values that can be read.
    """
    with suppress(Exception):  # damaged EXIF does not affect the pixels
        image.load()
        method = UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation))
        if method is not None:
            upright = image.transpose(method)
            for key in ORIENTED:
                upright.info.pop(key, None)
            return upright
    return image


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    return image if image.mode == mode else image.convert(mode)


def check_header(data: bytes, limits: ImageLimits) -> None:
    """Check an image by reading only its header.

    Raises UnreadableImage as `decode` does if the bytes are not an image, or if its size in pixels is outside the
    `limits`. In a worker process, the header may take MAX_HEADER_SECONDS of CPU time, and the process is ended if the
    header takes longer. `limits.seconds` is not used.
    """
    too_long = f"too-slow: reading its header takes more than {MAX_HEADER_SECONDS} s of CPU time"
    with processor_limit(MAX_HEADER_SECONDS, too_long), opening.pillow_limits(sys.maxsize), naming_faults(data, limits):
        # Pillow's own limit of pixels is off, because the error of `check_size` also names the size.
        opening.check_size(opening.open_image(data).size, limits)


class ImageProcess(Generic[Result]):
    """A callable that runs `function(data)` on the bytes of an image in a separate process.

    The process is killed if an image takes too long. A call raises InputError if the function fails or the process is
    killed. If an image has too many pixels, the error names the `key` of the configuration that limits the pixels. Use
    the object as a context manager, which ends the process.
    """

    def __init__(self, function: Callable[[bytes], Result], key: str = opening.PIXELS_KEY) -> None:
        self._worker = Worker(function)
        self._key = key

    def __call__(self, data: bytes) -> Result:
        outcome = self._worker(data)
        if isinstance(outcome, Failure):
            raise InputError(outcome.reason.replace(opening.PIXELS_KEY, self._key))
        return outcome

    def __enter__(self) -> "ImageProcess[Result]":
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()


def decoding_process(limits: ImageLimits) -> ImageProcess[Image.Image]:
    """Return a callable that decodes the bytes of an untrusted image in a separate process, as `decode(data, limits)`
    does.

    A call returns the image without metadata, or raises InputError if the image cannot be decoded. Use the callable as
    a context manager, which ends the process.
    """
    return ImageProcess(partial(_decode_alone, limits))


def _decode_alone(limits: ImageLimits, data: bytes) -> Image.Image:
    image = decode(data, limits)
    image.info = {}  # Pillow would write `info` into files that are made from the image
    return image

"""Opens untrusted image files with Pillow and decodes the first frame, within limits of size, memory and time.

Only Pillow decodes images here, because other decoders can crash on a single flipped bit in a PNG. torchvision decodes
only JPEGs (see `pipeline.images.decode`). The size in the header is checked before any pixel is decoded. A truncated
file is refused and never filled up with grey. Pillow misreads several TIFF layouts, and reports others as if they were
not images. Therefore the tags of a TIFF file are checked before a pixel is decoded.
"""

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image, ImagePalette, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from pipeline.compute.worker_process import memory_limit
from pipeline.images import colour
from pipeline.images.colour import UnreadableImage

if TYPE_CHECKING:
    from pipeline.config.collection import CollectionSettings

# libtiff also reads uncompressed files, because Pillow's own decoder misreads 16-bit samples in separate planes.
TiffImagePlugin.READ_LIBTIFF = True

# Only images in these formats, and HEIC, are opened. Pillow reads more formats, such as EPS, for which Pillow starts an
# interpreter.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
HEIF_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"})
"""Brands in the first box of HEIC files, which Pillow cannot decode without pillow-heif."""
AVIF_BRANDS = frozenset({b"avif", b"avis"})
"""Brands in the first box of AVIF files, which have the same container as HEIC files. Pillow decodes AVIF itself."""
NEEDS_HEIF = "HEIC photos need `pip install 'jointspace[heif]'`"
NEEDS_AVIF = "AVIF photos need `pip install 'Pillow>=11.3'`"
"""NEEDS_HEIF and NEEDS_AVIF are values of `UnreadableImage.reason`. Both reasons contain the remedy, because for many
images only the reasons are shown, with the number of images for each reason."""
OVER_TIME = "decoding takes more CPU time than collection.decode_seconds allows"
"""Beginning of the explanation of an UnreadableImage whose decoding exceeds its limit of time."""
MAX_BRANDS_BYTES = 256
"""Largest number of bytes at the beginning of a HEIC or AVIF file in which brands are looked for."""
JPEG_START = b"\xff\xd8\xff"
PNG_START = b"\x89PNG"
PNG_END = b"IEND\xaeB`\x82"
TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""The first bytes of TIFF and BigTIFF, in both byte orders."""
MAX_PNG_PROFILES = 4
"""Largest number of colour profiles in a PNG. A PNG with more profiles is rejected, because Pillow unpacks all of them,
each up to MAX_PNG_TEXT_BYTES. The standard allows one profile."""
MAX_PNG_TEXT_BYTES = 128 << 20
"""Largest number of bytes to which the texts or a profile of a PNG may unpack. Editors have written tens of
megabytes. A PNG with more is rejected as damaged."""
MIN_SIDE = 8
"""Smallest side in pixels of an image of a collection. A smaller image is rejected."""
MAX_ASPECT = 20
"""Largest ratio of the longer side to the shorter side of an image of a collection. A more elongated image is
rejected."""
BASE_BYTES = 64 << 20
"""Number of bytes of memory that decoding may take for every image, besides BYTES_PER_PIXEL for each pixel."""
BYTES_PER_PIXEL = 64
"""Number of bytes of memory that decoding may take for each pixel of the size in the header. The number is generous,
because the real size may be different. Codecs take up to 20 bytes per pixel."""
PIXELS_KEY = "collection.max_image_pixels"
"""The configuration key of `ImageLimits.max_pixels`, as messages name it."""
MAX_SCANS = 100
"""Largest number of scans in a JPEG. A JPEG with more scans is rejected as too slow. Each scan is a pass over all
pixels, and may have as few as 14 bytes. Encoders write ten scans, and libtiff has this limit too."""
MARGIN = 2
"""Smallest ratio of the shorter side of a JPEG after decoding at a reduced size to the shorter side to which the JPEG
is resized next. With a ratio above 1, the quality depends on the resizing and not on the decoding."""
JPEG_SCALES = (1, 2, 4, 8)
"""Factors by which the decoder can divide the width and height of a JPEG."""
COUNTED_BYTES = 1 << 20
"""Number of bytes in which `count_scan_markers` searches at a time, so that it needs little memory."""
SCAN_MARKER = 0xDA
END_MARKER = 0xD9
MARKER = re.compile(rb"\xff([\x02-\xcf\xd8-\xfe])")
"""Pattern of a marker that ends the data of a scan. Bytes FF 00, which are data, and restart markers do not match."""
GDAL_NODATA = 42113
"""The TIFF tag with the sample value that GDAL uses for missing data."""


@dataclass(frozen=True)
class ImageLimits:
    """Limits on an image: at most `max_pixels`, sides of at least `min_side`, longer / shorter side <= `max_aspect`,
    and at most `seconds` of CPU time to decode it."""

    max_pixels: int
    min_side: int
    max_aspect: float
    seconds: float = math.inf

    @classmethod
    def from_settings(cls, collection: "CollectionSettings") -> "ImageLimits":
        """Return the limits in the section `collection` of a configuration."""
        return cls(collection.max_image_pixels, MIN_SIDE, MAX_ASPECT, collection.decode_seconds)


class Loaded(NamedTuple):
    """The decoded first frame of an image, before it is turned upright.

    `factors` has one whole number for each of the `sides` that `load` got. The width and height of the frame may be
    divided by this number for an image that will be resized to this side. `note` says how unusual samples were read, or
    is None.
    """

    image: Image.Image
    factors: list[int]
    note: str | None = None


def load(data: bytes, limits: ImageLimits, sides: Sequence[int | None]) -> Loaded:
    """Decode the first frame of an image.

    `sides` has the sizes to which the frame will be resized next, as the number of pixels of the shorter side, or None
    for a frame that keeps its size. A JPEG is decoded as small as the largest of `sides` allows. Raises UnreadableImage
    if the image is outside the `limits`, is truncated or has a layout that is not read. Raises Pillow's exceptions for
    damaged images.
    """
    image = open_image(data)
    check_size(image.size, limits)
    pixels = math.prod(image.size)  # Even a JPEG that is decoded smaller needs memory for its whole size.
    factors = [1] * len(sides)
    if image.format == "JPEG":
        if has_more_scans(data, MAX_SCANS):
            raise UnreadableImage("too-slow", f"the JPEG has more than {MAX_SCANS} scans. Save it with fewer")
        factors = draft_jpeg(image, sides)
    tags = image.tag_v2 if isinstance(image, TiffImagePlugin.TiffImageFile) else None
    if tags and tags.get(TiffImagePlugin.TILEWIDTH, 0) * tags.get(TiffImagePlugin.TILELENGTH, 0) > limits.max_pixels:
        raise UnreadableImage(
            "too-large", f"the tiles of the TIFF have more than {limits.max_pixels} pixels. Save it with smaller tiles"
        )
    lower = colour.lower_bytes(image)
    texts = 5 * MAX_PNG_TEXT_BYTES if image.format == "PNG" else 0  # Pillow also copies texts after the pixels.
    with memory_limit(BASE_BYTES + texts + BYTES_PER_PIXEL * pixels):
        try:
            image.load()
        except (OSError, RuntimeError):
            # libjpeg reports a lack of memory as damage. This allocation raises MemoryError in that case.
            bytearray(8 * pixels)
            raise
    # Pillow stops at the last pixel and does not notice a missing end.
    if image.format == "PNG" and data.rfind(PNG_END) < 0:
        raise UnreadableImage("truncated", "the end of the PNG is missing. Copy the file again")
    note = None
    if lower and colour.is_dark(image):
        # Pillow returns only the upper bytes of separate planes, so the lower bytes cannot be added.
        if tags and tags.get(TiffImagePlugin.PLANAR_CONFIGURATION) == 2:
            raise TiffLayout.from_tags(tags).refuse(", and values of only 12 or 14 of its 16 bits")
        lower_image = open_image(data)
        lower_image.tile = lower
        lower_image.load()
        image, note = colour.scale_colours(image, lower_image)
    if tags:
        image, tiff_note = to_8_bits(image, tags)
        note = note or tiff_note
    return Loaded(image, factors, note)


def open_image(data: bytes) -> ImageFile:
    """Open an image and read its header. An MPO, which is a JPEG followed by further images, is opened as a JPEG.

    Raises UnreadableImage for a TIFF layout that is not read, for a PNG with too many colour profiles, and for HEIC if
    pillow-heif is not installed. Raises Pillow's exceptions for other bytes that are not an image.
    """
    if data.startswith(TIFF_STARTS):
        return open_tiff(data)
    if data.startswith(PNG_START) and data.count(b"iCCP") > MAX_PNG_PROFILES:
        raise UnreadableImage("damaged", f"the PNG has more than {MAX_PNG_PROFILES} colour profiles. Save it again")
    if data.startswith(JPEG_START):
        with suppress(SyntaxError):
            return JpegImagePlugin.JpegImageFile(io.BytesIO(data))
    return Image.open(io.BytesIO(data), formats=(*FORMATS, _heif()) if brands(data) & HEIF_BRANDS else FORMATS)


def brands(data: bytes) -> frozenset[bytes]:
    """Return the brands in the first box of a HEIC, AVIF or MP4 file, which identify the format.

    Return an empty set for other files.
    """
    if data[4:8] != b"ftyp":
        return frozenset()
    box = data[8 : min(int.from_bytes(data[:4]), MAX_BRANDS_BYTES)]
    return frozenset(box[at : at + 4] for at in range(0, len(box), 4))


@cache
def _heif() -> str:
    """Register the HEIC decoder with Pillow in this process, and return Pillow's name of the format.

    Raises UnreadableImage if pillow-heif is not installed.
    """
    try:
        import pillow_heif
    except ImportError as error:
        raise UnreadableImage(NEEDS_HEIF, f"{error.name} is not installed") from None
    pillow_heif.register_heif_opener(thumbnails=False, decode_threads=1)
    return "HEIF"


def too_slow(seconds: float) -> UnreadableImage:
    return UnreadableImage("too-slow", f"{OVER_TIME}, {seconds:g} s")


@contextmanager
def pillow_limits(max_pixels: int) -> Iterator[None]:
    """Make Pillow refuse images and inner frames with more than `max_pixels` pixels while the `with` block runs.

    In the block, Pillow also accepts texts of a PNG up to MAX_PNG_TEXT_BYTES.
    """
    before = Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY
    with warnings.catch_warnings():
        # Pillow warns about odd metadata, which is harmless.
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        Image.MAX_IMAGE_PIXELS = max_pixels
        PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = MAX_PNG_TEXT_BYTES
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY = before


def check_size(size: tuple[int, int], limits: ImageLimits) -> None:
    short, long = sorted(size)
    shape = f"{size[0]} x {size[1]} pixels"
    if short * long > limits.max_pixels:
        raise UnreadableImage("too-large", f"the photo has {shape}, but {PIXELS_KEY} allows only {limits.max_pixels}")
    if short < limits.min_side:
        raise UnreadableImage(
            "too-small", f"the photo has {shape}, but each side needs at least {limits.min_side} pixels"
        )
    if long > limits.max_aspect * short:
        raise UnreadableImage(
            "too-elongated",
            f"the photo has {shape}, so one side is more than {limits.max_aspect:g} times as long as the other",
        )


def has_more_scans(data: bytes, most: int) -> bool:
    """Return whether a JPEG has more than `most` scans."""
    # The count includes scans in a thumbnail and after the end, so a larger count must be checked.
    if count_scan_markers(data) <= most:
        return False
    at = 2
    scans = 0
    while (marker := MARKER.search(data, at)) and marker[1][0] != END_MARKER:
        at = marker.end() + int.from_bytes(data[marker.end() : marker.end() + 2])
        scans += marker[1][0] == SCAN_MARKER
        if scans > most:
            return True
    return False


def count_scan_markers(data: bytes) -> int:
    """Count the markers FF DA in the bytes of a JPEG. NumPy takes a fifth of the time of `bytes.count`."""
    array = np.frombuffer(data, np.uint8)
    # Blocks overlap by one byte, so that a marker at the end of a block is found.
    blocks = (array[start : start + COUNTED_BYTES + 1] for start in range(0, len(array), COUNTED_BYTES))
    return sum(int(np.count_nonzero((block[:-1] == 0xFF) & (block[1:] == SCAN_MARKER))) for block in blocks)


def draft_jpeg(image: Image.Image, sides: Sequence[int | None]) -> list[int]:
    """Make Pillow decode an opened JPEG as small as the largest of `sides` allows (None: the whole size).

    Return, for each of `sides`, the factor by which the decoded image can then be reduced.
    """
    drafts = [_jpeg_scale(image.size, side) for side in sides]
    scale, requested_size = min(drafts)
    if image.draft(None, requested_size) is None:
        return [1] * len(sides)
    return [wanted // scale for wanted, _ in drafts]


def _jpeg_scale(size: tuple[int, int], side: int | None) -> tuple[int, tuple[int, int]]:
    """Return the factor by which a JPEG can be decoded smaller, and the smallest (width, height) that Pillow may
    decode.

    `size` is the (width, height) of the JPEG. `side` is the shorter side to which it will be resized next, or None if
    it keeps its size. The factor is one of JPEG_SCALES.
    """
    width, height = size
    share = 1 if side is None else MARGIN * side / min(size)
    requested = math.ceil(share * width), math.ceil(share * height)
    fits = min(width // requested[0], height // requested[1])
    return max(scale for scale in JPEG_SCALES if scale <= max(1, fits)), requested


TIFF_COMPRESSIONS = TiffImagePlugin.COMPRESSION_INFO.keys() - {50001}
"""Values of the TIFF tag Compression with which files are read. Pillow's libtiff is built without 50001, WebP."""
SAMPLE_KINDS = {1: "unsigned", 2: "signed", 3: "floating-point", 5: "complex", 6: "complex"}
"""Value of the TIFF tag SampleFormat -> the name of this kind of samples."""
NATIVE_ORDER = {"I;16BS": "I;16NS", "I;32BS": "I;32NS", "F;32BF": "F;32NF"}
"""Pillow's name of big-endian samples -> Pillow's name of the same samples in the byte order of this machine, in which
libtiff returns samples."""
FOURTH_BAND = "have a fourth band whose meaning is not stated: it is ignored"


class TiffColours(NamedTuple):
    """The TIFF layouts that are read for one value of the tag PhotometricInterpretation, which `name` describes.

    `bands` is the number of bands that are colours. `bits` maps a name in SAMPLE_KINDS to the numbers of bits that a
    sample of this kind may have. `extras` are the values of ExtraSamples that the first band after the colours may have
    (0: not stated, 1: alpha that multiplies the colours, 2: other alpha).
    """

    name: str
    bands: int
    bits: dict[str, tuple[int, ...]]
    extras: tuple[int, ...] = ()


TIFF_LAYOUTS = {
    0: TiffColours("white is zero", 1, {"unsigned": (1, 2, 4, 8)}),
    1: TiffColours(
        "black is zero", 1, {"unsigned": (1, 2, 4, 8, 12, 16), "signed": (16, 32), "floating-point": (32,)}, (0, 2)
    ),
    2: TiffColours("RGB", 3, {"unsigned": (8, 16)}, (0, 1, 2)),
    3: TiffColours("palette", 1, {"unsigned": (1, 2, 4, 8)}, (0, 2)),
    5: TiffColours("CMYK", 4, {"unsigned": (8, 16)}, (0,)),
    6: TiffColours("YCbCr", 3, {"unsigned": (8,)}),
    8: TiffColours("Lab", 3, {"unsigned": (8,)}),
}
"""The layouts that are read, by the value of PhotometricInterpretation. All other layouts are refused."""


class TiffLayout(NamedTuple):
    """The layout of the first image in a TIFF file.

    `photometric` is the value of PhotometricInterpretation. `bands` is the number of all bands. `kind` is the kind of
    the samples, a value of SAMPLE_KINDS. If the bands have different kinds, `kind` has all of them, joined by `and`.
    `bits` is the number of bits of a sample, or 0 if the bands have different numbers of bits. `extras` are the values
    of ExtraSamples, and `planes` says whether each band is stored in a separate plane.
    """

    photometric: int
    bands: int
    kind: str
    bits: int
    extras: tuple[int, ...]
    planes: bool

    @classmethod
    def from_tags(cls, tags: TiffImagePlugin.ImageFileDirectory_v2) -> "TiffLayout":
        """Read the layout from the tags of a file."""
        # With the old JPEG compression (6), the colours are YCbCr, whatever the tags say.
        old_jpeg = tags.get(TiffImagePlugin.COMPRESSION) == 6
        bands = tags.get(TiffImagePlugin.SAMPLESPERPIXEL, 3 if old_jpeg else 1)
        formats = tags.get(TiffImagePlugin.SAMPLEFORMAT, (1,))[:bands]
        kinds = {SAMPLE_KINDS.get(value, "untyped") for value in formats}
        bits = set(tags.get(TiffImagePlugin.BITSPERSAMPLE, (1,))[:bands])
        return cls(
            photometric=6 if old_jpeg else tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION, 0),
            bands=bands,
            kind=" and ".join(sorted(kinds)),
            bits=max(bits) if len(bits) == 1 else 0,
            extras=tags.get(TiffImagePlugin.EXTRASAMPLES, ()),
            planes=tags.get(TiffImagePlugin.PLANAR_CONFIGURATION) == 2,
        )

    @property
    def colours(self) -> TiffColours:
        return TIFF_LAYOUTS.get(self.photometric, TiffColours("not known here", 0, {}))

    def is_read(self) -> bool:
        """Return whether TIFF_LAYOUTS has this layout.

        Pillow refuses a few of these layouts, and reads the others correctly.
        """
        further = self.bands - self.colours.bands
        if self.bits not in self.colours.bits.get(self.kind, ()) or further < 0:
            return False
        rgb_and_one = self.photometric == 2 and further == 1
        if further == 0 or not self.extras:
            return further == 0 or rgb_and_one and not self.planes
        # A raster with more further bands than colours is not a photo. If each band has a separate plane, Pillow reads
        # alpha correctly only with RGB.
        placed = rgb_and_one or not self.planes or not any(self.extras)
        return self.extras[0] in self.colours.extras and further <= self.colours.bands and placed

    def refuse(self, why: str = "") -> UnreadableImage:
        """Return the error that names this layout and gives a command that converts it.

        `why` is added to the description of the layout in the message, such as `, Compression 50001`. The caller raises
        the error.
        """
        bands = " ".join(f"-b {band}" for band in range(1, 4 if self.bands > 2 else 2))
        return UnreadableImage(
            "unsupported-tiff",
            f"the TIFF has {self.bands} band{'s' * (self.bands > 1)} of {self.bits or 'various'} bits, {self.kind}, in"
            f" {'separate planes' if self.planes else 'one plane'}, PhotometricInterpretation {self.photometric}"
            f" ({self.colours.name}), ExtraSamples {', '.join(map(str, self.extras)) or 'not given'}{why}. Save it"
            f" as RGB or grey of 8 bits, for example with `gdal_translate {bands} -ot Byte -scale IN OUT`",
        )


def open_tiff(data: bytes) -> ImageFile:
    """Open a TIFF file and read its header. No pixel is decoded.

    Raises UnreadableImage if the tags of the file are damaged, or for a layout that is not read.
    """
    if data.startswith(b"MM\0+"):
        raise UnreadableImage(
            "unsupported-tiff", "a BigTIFF in big-endian order is not read. Save it as a little-endian TIFF"
        )
    file = io.BytesIO(data)
    try:
        tags = TiffImagePlugin.ImageFileDirectory_v2(file.read(16 if data[2] == 43 else 8))
        file.seek(tags.next)
        tags.load(file)
        layout = TiffLayout.from_tags(tags)
        compression = tags.get(TiffImagePlugin.COMPRESSION, 1)
        # This call raises KeyError if one of the two tags is missing.
        itemgetter(TiffImagePlugin.IMAGEWIDTH, TiffImagePlugin.IMAGELENGTH)(tags)
    except Exception as error:
        raise UnreadableImage("damaged", "the tags of this TIFF cannot be read. Save it again") from error
    if not layout.is_read() or compression not in TIFF_COMPRESSIONS:
        raise layout.refuse(f", Compression {compression}")
    try:
        image = Image.open(file, formats=("TIFF",))
    except UnidentifiedImageError:
        raise layout.refuse(f", in {'big' if data.startswith(b'MM') else 'little'}-endian order") from None
    for number, tile in enumerate(image.tile):
        assert isinstance(tile.args, tuple)  # libtiff's tiles have a mode and further arguments
        mode, *more = tile.args
        image.tile[number] = tile._replace(args=(NATIVE_ORDER.get(mode, mode), *more))
    palette = tags.get(TiffImagePlugin.COLORMAP, ())
    if image.mode == "P" and max(palette, default=256) < 256:
        # Some programs write levels of 8 bits where the format requires 16, and Pillow keeps only the upper 8 bits.
        image.palette = ImagePalette.raw("RGB;L", bytes(palette))
    return image


def to_8_bits(image: Image.Image, tags: TiffImagePlugin.ImageFileDirectory_v2) -> tuple[Image.Image, str | None]:
    """Scale a decoded TIFF with grey samples of more than 8 bits to 8 bits, or drop a fourth band without a known
    meaning. Other images are returned unchanged.

    Return the image, and a note for the user if the range of the samples or the meaning of the band had to be assumed,
    or else None.
    """
    if image.mode.startswith(("I", "F")):
        stated = tags.get(GDAL_NODATA)
        nodata = None
        if isinstance(stated, str):
            with suppress(ValueError):
                nodata = float(stated.strip("\0 "))
        return colour.scale_samples(image, nodata)
    if image.mode == "RGBA" and TiffImagePlugin.EXTRASAMPLES not in tags:
        return image.convert("RGB"), FOURTH_BAND
    return image, None

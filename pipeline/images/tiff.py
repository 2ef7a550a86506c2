"""The layouts of TIFF files that are read, and the names of the other layouts.

Pillow opens several layouts that it misreads, and reports others as if they were not images. Here the tags of the file
decide before a pixel is decoded.
"""

import io
from contextlib import suppress
from typing import NamedTuple

from PIL import Image, TiffImagePlugin, UnidentifiedImageError

from pipeline.images import colour
from pipeline.images.colour import UnreadableImage

TiffImagePlugin.READ_LIBTIFF = True  # also for uncompressed files: Pillow's own decoder misreads 16 bits in planes

STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""The first bytes of TIFF and BigTIFF, in both byte orders."""
COMPRESSIONS = TiffImagePlugin.COMPRESSION_INFO.keys() - {50001}
"""Values of Compression that are read. Pillow's libtiff is built without 50001, WebP."""
KINDS = {1: "unsigned", 2: "signed", 3: "floating-point", 5: "complex", 6: "complex"}
"""Names for the values of SampleFormat."""
NATIVE = {"I;16BS": "I;16NS", "I;32BS": "I;32NS", "F;32BF": "F;32NF"}
"""Pillow's names of big-endian samples, and of samples in the order of this machine, which libtiff returns."""
FOURTH_BAND = "have a fourth band whose meaning is not stated: it is ignored"


class Colours(NamedTuple):
    """The layouts of a photometric interpretation that are read: the bits of its samples for each of KINDS, and the
    values of ExtraSamples that a first further band may have (0: not stated, 1: alpha that multiplies the colours, 2:
    other alpha)."""

    name: str
    bands: int
    bits: dict[str, tuple[int, ...]]
    extras: tuple[int, ...] = ()


READ = {
    0: Colours("white is zero", 1, {"unsigned": (1, 2, 4, 8)}),
    1: Colours(
        "black is zero", 1, {"unsigned": (1, 2, 4, 8, 12, 16), "signed": (16, 32), "floating-point": (32,)}, (0, 2)
    ),
    2: Colours("RGB", 3, {"unsigned": (8, 16)}, (0, 1, 2)),
    3: Colours("palette", 1, {"unsigned": (1, 2, 4, 8)}, (0, 2)),
    5: Colours("CMYK", 4, {"unsigned": (8, 16)}, (0,)),
    6: Colours("YCbCr", 3, {"unsigned": (8,)}),
    8: Colours("Lab", 3, {"unsigned": (8,)}),
}
"""Everything that is read, by the value of PhotometricInterpretation. All other layouts are refused."""


class Layout(NamedTuple):
    """How the first image of a TIFF file is stored. `bits` is 0 if samples differ in their number of bits."""

    photometric: int
    bands: int
    kind: str
    bits: int
    extras: tuple[int, ...]
    planes: bool

    @classmethod
    def from_tags(cls, tags: TiffImagePlugin.ImageFileDirectory_v2) -> "Layout":
        old_jpeg = tags.get(259) == 6  # its colours are YCbCr, whatever the tags say
        bands = tags.get(277, 3 if old_jpeg else 1)
        kinds = {KINDS.get(one, "untyped") for one in tags.get(339, (1,))[:bands]}
        bits = set(tags.get(258, (1,))[:bands])
        kind, bits = " and ".join(sorted(kinds)), max(bits) if len(bits) == 1 else 0
        return cls(6 if old_jpeg else tags.get(262, 0), bands, kind, bits, tags.get(338, ()), tags.get(284) == 2)

    @property
    def colours(self) -> Colours:
        return READ.get(self.photometric, Colours("not known here", 0, {}))

    def is_read(self) -> bool:
        """Whether READ has this layout. Pillow refuses a few of these layouts, and reads the others rightly."""
        further = self.bands - self.colours.bands
        if self.bits not in self.colours.bits.get(self.kind, ()) or further < 0:
            return False
        rgb_and_one = self.photometric == 2 and further == 1
        if further == 0 or not self.extras:
            return further == 0 or rgb_and_one and not self.planes
        # A raster with more further bands than colours is not a photo. In planes, Pillow places only the alpha of RGB.
        placed = rgb_and_one or not self.planes or not any(self.extras)
        return self.extras[0] in self.colours.extras and further <= self.colours.bands and placed

    def refuse(self, why: str = "") -> UnreadableImage:
        """Returns the error that names this layout and gives a command that converts it."""
        bands = " ".join(f"-b {band}" for band in range(1, 4 if self.bands > 2 else 2))
        return UnreadableImage(
            "unsupported-tiff",
            f"{self.bands} band{'s' * (self.bands > 1)} of {self.bits or 'various'} bits, {self.kind}, in"
            f" {'separate planes' if self.planes else 'one plane'}, PhotometricInterpretation {self.photometric}"
            f" ({self.colours.name}), ExtraSamples {', '.join(map(str, self.extras)) or 'not given'}{why}; save it as"
            f" RGB or grey of 8 bits, for example by `gdal_translate {bands} -ot Byte -scale IN OUT`",
        )


def open_tiff(data: bytes) -> Image.Image:
    """Opens a TIFF file and reads its header. Raises UnreadableImage for a layout that is not read."""
    if data.startswith(b"MM\0+"):
        raise UnreadableImage("unsupported-tiff", "a BigTIFF in big-endian order; save it as a little-endian TIFF")
    file = io.BytesIO(data)
    try:
        tags = TiffImagePlugin.ImageFileDirectory_v2(file.read(16 if data[2] == 43 else 8))
        file.seek(tags.next)
        tags.load(file)
        layout, compression = Layout.from_tags(tags), tags.get(259, 1)
        tags[256], tags[257]  # the width and the height
    except Exception as error:
        raise UnreadableImage("damaged", "the tags of this TIFF cannot be read") from error
    if not layout.is_read() or compression not in COMPRESSIONS:
        raise layout.refuse(f", Compression {compression}")
    try:
        image = Image.open(file, formats=("TIFF",))
    except UnidentifiedImageError:
        raise layout.refuse(f", in {'big' if data.startswith(b'MM') else 'little'}-endian order") from None
    image.tile = [tile._replace(args=(NATIVE.get(tile.args[0], tile.args[0]), *tile.args[1:])) for tile in image.tile]
    return image


def to_8_bits(image: Image.Image, tags: TiffImagePlugin.ImageFileDirectory_v2) -> tuple[Image.Image, str | None]:
    """Scales a loaded TIFF to 8-bit samples, and drops a fourth band without a stated meaning. Returns the image, and a
    note if anything was assumed."""
    if image.mode.startswith(("I", "F")):
        nodata = None
        with suppress(AttributeError, TypeError, ValueError):
            nodata = float(tags.get(42113).strip("\0 "))  # GDAL_NODATA
        return colour.scale_samples(image, nodata)
    if image.mode == "RGBA" and 338 not in tags:
        return image.convert("RGB"), FOURTH_BAND
    return image, None

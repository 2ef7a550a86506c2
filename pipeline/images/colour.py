"""Converts the samples and colours of an image to 8-bit sRGB.

Samples of more than 8 bits are scaled from the smallest usual range that contains them. An embedded colour profile is
applied, unless it cannot be used or is the profile of sRGB, which changes nothing.
"""

import math
import sys
from functools import lru_cache
from io import BytesIO
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image
from PIL.ImageFile import ImageFile

from pipeline.errors import Refused

if TYPE_CHECKING:
    from PIL.ImageCms import ImageCmsTransform
    from PIL.ImageFile import _Tile

USUAL_RANGES = {"I;16": (4095, 16383, 65535), "I": (255, 4095, 16383, 65535), "F": (1, 255)}
"""Usual largest samples in Pillow's modes of more than 8 bits. Cameras store 12 or 14 bits in 16 bits."""
OWN_RANGE = "have samples outside the usual ranges: each photo is scaled from its own least sample to its greatest"
PART = "have more than 8 bits a sample and no sample above {0}: they are scaled from 0 to {0}"
NOTES = {None: OWN_RANGE, 4095: PART.format(4095), 16383: PART.format(16383)}
"""Largest sample of a range -> the note about photos that are scaled from this range. The key None stands for a photo's
own range, outside the usual ranges. There is no note about photos that are scaled from another range."""
BROKEN = "have a colour profile that cannot be used: their colours are taken for sRGB"
MAX_PROFILE_BYTES = 4 << 20
"""Largest size in bytes of a colour profile that is used. Colours with a larger profile are taken for sRGB. The largest
known profiles, of printing presses, have 3 MB."""
MAX_CACHED_PROFILES = 32
"""Number of different profiles that a process keeps. A camera or a phone has one profile."""
PROFILE_MODES = {b"RGB ": "RGB", b"GRAY": "L", b"CMYK": "CMYK"}
"""Colour space in the header of a profile -> Pillow's mode of the images that the profile converts."""
OTHER_BYTE_ORDER = {"little": "B", "big": "L"}[sys.byteorder]
DEEP_COLOURS = {
    f"{mode};16{order}": f"{mode};16{other}"
    for mode in ("RGB", "RGBX", "RGBA")
    for order, other in ("LB", "BL", "N" + OTHER_BYTE_ORDER)
}
"""Pillow's name of a mode with 16-bit samples -> Pillow's name of the same mode with the other byte order."""
GREY_MODES = ("1", "L", "LA", "La", "I", "F", "I;16", "I;16L", "I;16B")
PROBE_LEVELS = range(0, 256, 51)
"""Levels of each channel in the colours that test whether a profile is sRGB."""
MAX_SRGB_DIFFERENCE = 4
"""Largest change of a colour by a profile that counts as sRGB, in levels from 0 to 255. The profile of sRGB may also
change colours a little, because the numbers in small profiles are rounded."""
MIN_WHITE_LEVEL = 200
"""Smallest level of each channel to which a profile may convert white. If a level is smaller, the profile is broken."""


class UnreadableImage(Refused):
    """Error for the bytes of an image that cannot be used.

    `reason` is not-an-image, truncated, damaged, not-finite, too-large, too-small, too-elongated, too-slow,
    out-of-memory, unsupported-tiff, or a reason that names the package that must be installed. `detail` says more.
    """


class Conversion(NamedTuple):
    """The conversion of an image by its colour profile.

    `transform` converts images of the mode `mode` to sRGB, or is None if no conversion is needed. If `broken` is true,
    the profile cannot be used.
    """

    mode: str = "RGB"
    transform: "ImageCmsTransform | None" = None
    broken: bool = False


def scale_samples(image: Image.Image, nodata: float | None = None) -> tuple[Image.Image, str | None]:
    """Scale 16-bit integer, 32-bit integer or float samples to 8-bit grey.

    A sample of 0 becomes 0, and the end of the smallest of the USUAL_RANGES that contains all samples becomes 255. If
    no range contains all samples, the smallest sample becomes 0, and the largest becomes 255. Return the image, and the
    entry of NOTES for this range, or None. Samples that equal `nodata` are ignored and become white. Raises
    UnreadableImage if another sample is not finite.
    """
    samples = np.asarray(image)
    ignored = np.isnan(samples) if nodata is not None and math.isnan(nodata) else samples == nodata
    kept = samples[~ignored] if np.any(ignored) else samples
    low, high = (float(kept.min()), float(kept.max())) if kept.size else (0.0, 0.0)
    if not math.isfinite(low + high):  # A sample that is NaN makes `low` and `high` NaN.
        raise UnreadableImage("not-finite", "some pixels of the photo are NaN or infinite. Save it with finite values")
    usual = next((top for top in USUAL_RANGES[image.mode[:4]] if low >= 0 and high <= top), None)
    if usual:
        low = 0.0
        high = float(usual)
    grey = samples.astype(np.float64)
    grey -= low
    grey *= 255 / (high - low or 1)
    grey[ignored] = 255
    scaled = Image.fromarray(np.rint(grey, out=grey).astype(np.uint8))
    scaled.info = dict(image.info)
    scaled.format = image.format
    return scaled, NOTES.get(usual)


def lower_bytes(image: ImageFile) -> "list[_Tile] | None":
    """Return the tiles with which Pillow loads the lower 8 bits of an opened image with 16-bit colours.

    The tiles of the opened image load the upper 8 bits. Return None for other images.
    """
    swapped = []
    for tile in image.tile:
        mode, *more = (tile.args,) if isinstance(tile.args, str) else tile.args or ("",)
        if mode not in DEEP_COLOURS:
            return None
        mode = DEEP_COLOURS[mode]
        swapped.append(tile._replace(args=(mode, *more) if more else mode))
    return swapped or None


def is_dark(image: Image.Image) -> bool:
    """Return whether 16-bit colours, of which `image` has the upper 8 bits, may have only 14 or 12 bits.

    This is so if no colour is larger than the largest value of 14 bits. The photo would then look almost black.
    """
    greatest = [band[1] for band in image.getextrema()[:3] if isinstance(band, tuple)]
    return max(greatest) <= USUAL_RANGES["I;16"][-2] >> 8


def scale_colours(upper: Image.Image, lower: Image.Image) -> tuple[Image.Image, str | None]:
    """Scale 16-bit colours, with or without transparency, to 8 bits, from the smallest usual range that contains them.

    The range of the transparency is found separately. `upper` and `lower` have the upper and lower 8 bits of the
    samples. Return the image, and a note if the range of the colours is not the whole range of 16 bits, or else None.
    """
    samples = np.asarray(upper).astype(np.uint16) * 256 + np.asarray(lower)
    top = 0
    for channels in (samples[..., 3:], samples[..., :3]):
        if channels.size:
            top = next(top for top in USUAL_RANGES["I;16"] if channels.max() <= top)
            channels[...] = np.rint(channels * (255 / top))
    image = Image.fromarray(samples.astype(np.uint8), upper.mode)
    image.info = dict(upper.info)
    image.format = upper.format
    return image, NOTES.get(top)


def find_conversion(image: Image.Image) -> Conversion:
    """Return the conversion to sRGB by the embedded colour profile of an image.

    `transform` of the result is None if the image has no profile, if the profile is the profile of sRGB, or if the
    profile cannot be used. Only in the last case, `broken` is true.
    """
    profile = image.info.get("icc_profile")
    if not profile:
        return Conversion()
    mode = "RGB"
    if image.mode == "CMYK":
        mode = "CMYK"
    elif image.mode in GREY_MODES and profile[16:20] == b"GRAY":
        mode = "L"
    return _conversion(profile, mode)


@lru_cache(MAX_CACHED_PROFILES)
def _conversion(profile: bytes, mode: str) -> Conversion:
    from PIL import ImageCms

    if len(profile) > MAX_PROFILE_BYTES or PROFILE_MODES.get(profile[16:20]) != mode:
        return Conversion(broken=True)
    try:
        transform = ImageCms.buildTransform(
            ImageCms.ImageCmsProfile(BytesIO(profile)),
            ImageCms.createProfile("sRGB"),
            mode,
            "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
            ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
    except (ImageCms.PyCMSError, OSError):
        return Conversion(broken=True)
    white = Image.new(mode, (1, 1), 0 if mode == "CMYK" else "white")
    if min(transform.apply(white).tobytes()) < MIN_WHITE_LEVEL:
        return Conversion(broken=True)
    if mode == "RGB":
        colours = np.array(list(product(PROBE_LEVELS, repeat=3)), np.uint8)[None]
        converted = np.asarray(transform.apply(Image.fromarray(colours)))
        if np.abs(converted.astype(int) - colours).max() <= MAX_SRGB_DIFFERENCE:
            return Conversion()
    return Conversion(mode, transform)

"""From an image's own samples and colours to 8-bit sRGB.

Samples of more than 8 bits are scaled from the smallest usual range that holds them. An embedded colour profile is
applied, unless it changes nothing, as sRGB does, or cannot be used.
"""

import math
import sys
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from pipeline.errors import Refused

if TYPE_CHECKING:
    from PIL.ImageCms import ImageCmsTransform

RANGES = {"I;16": (4095, 16383, 65535), "I": (255, 4095, 16383, 65535), "F": (1, 255)}
"""Usual greatest samples of Pillow's modes of more than 8 bits: cameras write 12 or 14 bits into 16."""
OWN_RANGE = "have samples outside the usual ranges: each photo is scaled from its own least sample to its greatest"
PART = "have more than 8 bits a sample and no sample above {0}: they are scaled from 0 to {0}"
NOTES = {None: OWN_RANGE, 4095: PART.format(4095), 16383: PART.format(16383)}
"""Greatest sample, None if it is not a usual one -> the note on such photos. Ranges of whole types have none."""
BROKEN = "have a colour profile that cannot be used: their colours are taken for sRGB"
LARGEST_PROFILE = 4 << 20
"""Bytes; the largest of printing presses have about 3 MB."""
PROFILES = 32
"""Different profiles that a process keeps: a camera or a phone has one."""
SPACES = {b"RGB ": "RGB", b"GRAY": "L", b"CMYK": "CMYK"}
"""Pillow's mode for the colour space in a profile's header."""
NATIVE = {"little": "B", "big": "L"}[sys.byteorder]
DEEP_COLOURS = {
    f"{mode};16{a}": f"{mode};16{b}" for mode in ("RGB", "RGBX", "RGBA") for a, b in ("LB", "BL", "N" + NATIVE)
}
"""Pillow's names of 16-bit samples in one order of their bytes, and in the other."""
GREY_MODES = ("1", "L", "LA", "La", "I", "F", "I;16", "I;16L", "I;16B")
STEPS = range(0, 256, 51)
SAME = 4
"""Levels of 255 by which a profile may change a colour and still be sRGB: profiles of a few hundred bytes round it."""
LIGHT = 200
"""Below this, white has become another colour, and the profile is broken."""


class UnreadableImage(Refused):
    """An unusable image. `reason` is not-an-image, truncated, damaged, not-finite, too-large, too-small, too-elongated,
    too-slow, out-of-memory, unsupported-tiff, or one that names what must be installed; `detail` says more."""


class Conversion(NamedTuple):
    """What a profile asks for: the `mode` that its `transform` to sRGB takes. None, None: nothing; `broken`: it cannot
    be used."""

    mode: str | None = None
    transform: "ImageCmsTransform | None" = None
    broken: bool = False


def scale_samples(image: Image.Image, nodata: float | None = None) -> tuple[Image.Image, str | None]:
    """Scales 16-bit integer, 32-bit integer or float samples to 8-bit grey, from the smallest of RANGES that holds
    them, or else from their own range. Returns the image, and a note if that range is not the whole of the type.

    Samples that equal `nodata` are left out, and become white. Raises UnreadableImage for samples that are not finite.
    """
    samples = np.asarray(image)
    left_out = np.isnan(samples) if nodata is not None and math.isnan(nodata) else samples == nodata
    kept = samples[~left_out] if np.any(left_out) else samples
    low, high = (float(kept.min()), float(kept.max())) if kept.size else (0, 0)
    if not math.isfinite(low + high):  # NaN in any sample makes both NaN
        raise UnreadableImage("not-finite", "some of its samples are NaN or infinite")
    usual = next((top for top in RANGES[image.mode[:4]] if low >= 0 and high <= top), None)
    if usual:
        low, high = 0, usual
    grey = samples.astype(np.float64)
    grey -= low
    grey *= 255 / (high - low or 1)
    grey[left_out] = 255
    scaled = Image.fromarray(np.rint(grey, out=grey).astype(np.uint8))
    scaled.info, scaled.format = dict(image.info), image.format
    return scaled, NOTES.get(usual)


def lower_bytes(image: Image.Image) -> list[Any] | None:
    """Returns the tiles by which Pillow loads the lower 8 bits of an opened image with 16-bit colours, whose own tiles
    load the upper 8. Returns None for other images."""
    swapped = []
    for tile in image.tile:
        mode, *more = (tile.args,) if isinstance(tile.args, str) else tile.args or ("",)
        if mode not in DEEP_COLOURS:
            return None
        mode = DEEP_COLOURS[mode]
        swapped.append(tile._replace(args=(mode, *more) if more else mode))
    return swapped or None


def is_dark(image: Image.Image) -> bool:
    """Whether the upper 8 of 16 bits are so small that the colours may have 14 or 12 bits."""
    return max(high for _, high in image.getextrema()[:3]) <= RANGES["I;16"][-2] >> 8


def scale_colours(upper: Image.Image, lower: Image.Image) -> tuple[Image.Image, str | None]:
    """Scales colours, with or without transparency, from the two bytes of each sample, as `scale_samples` does."""
    samples = np.asarray(upper).astype(np.uint16) * 256 + np.asarray(lower)
    top = 0
    for channels in (samples[..., 3:], samples[..., :3]):
        if channels.size:
            top = next(top for top in RANGES["I;16"] if channels.max() <= top)
            channels[...] = np.rint(channels * (255 / top))
    image = Image.fromarray(samples.astype(np.uint8), upper.mode)
    image.info, image.format = dict(upper.info), upper.format
    return image, NOTES.get(top)


def find_conversion(image: Image.Image) -> Conversion:
    """The conversion to sRGB that an image's own profile asks for."""
    profile = image.info.get("icc_profile")
    if not profile:
        return Conversion()
    mode = "RGB"
    if image.mode == "CMYK":
        mode = "CMYK"
    elif image.mode in GREY_MODES and profile[16:20] == b"GRAY":
        mode = "L"
    return _conversion(profile, mode)


@lru_cache(PROFILES)
def _conversion(profile: bytes, mode: str) -> Conversion:
    from PIL import ImageCms

    if len(profile) > LARGEST_PROFILE or SPACES.get(profile[16:20]) != mode:
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
    if min(transform.apply(white).getpixel((0, 0))) < LIGHT:
        return Conversion(broken=True)
    if mode == "RGB":
        colours = bytes(level for red in STEPS for green in STEPS for blue in STEPS for level in (red, green, blue))
        sample = Image.frombytes("RGB", (len(colours) // 3, 1), colours)
        converted = transform.apply(sample).tobytes()
        if all(abs(before - after) <= SAME for before, after in zip(colours, converted, strict=True)):
            return Conversion()
    return Conversion(mode, transform)

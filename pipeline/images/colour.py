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
FULL = (1, 255, 65535)
"""Those of whole types, which are not worth a note."""
BROKEN = "have a colour profile that cannot be used: their colours are taken for sRGB"
LARGEST_PROFILE = 4 << 20
"""Bytes; the largest of printing presses have about 3 MB."""
PROFILES = 32
"""Different profiles that a process keeps: a camera or a phone has one."""
SPACES = {b"RGB ": "RGB", b"GRAY": "L", b"CMYK": "CMYK"}
"""Pillow's mode for the colour space in a profile's header."""
NATIVE = {"little": "B", "big": "L"}[sys.byteorder]
DEEP_COLOURS = {
    f"{mode};16{order}": f"{mode};16{other}" for mode in ("RGB", "RGBA") for order, other in ("LB", "BL", "N" + NATIVE)
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
    too-slow, or one that names what must be installed; `detail` says more."""


class Conversion(NamedTuple):
    """What a profile asks for: the `mode` that its `transform` to sRGB takes. None, None: nothing; `broken`: it cannot
    be used."""

    mode: str | None = None
    transform: "ImageCmsTransform | None" = None
    broken: bool = False


def scale_samples(image: Image.Image) -> tuple[Image.Image, int | None]:
    """16-bit integer, 32-bit integer or float samples as 8-bit grey, scaled from the smallest of RANGES that holds
    them, or else from their own range; and the greatest sample of that range if the samples' type has a larger one.

    Raises UnreadableImage for samples that are not finite.
    """
    kind = image.mode[:4]
    image = image.convert("I" if kind == "I;16" else kind).convert("F")
    if not math.isfinite(sum(memoryview(image.tobytes()).cast("f"))):
        raise UnreadableImage("not-finite", "some of its samples are NaN or infinite")
    low, high = image.getextrema()
    usual = next((top for top in RANGES[kind] if low >= 0 and high <= top), None)
    if usual:
        low, high = 0, usual
    scale = 255 / (high - low or 1)
    grey = image.point(lambda value: value * scale + (0.5 - low * scale)).convert("L")
    return grey, None if usual in FULL else usual


def lower_bytes(image: Image.Image) -> list[Any] | None:
    """Of an opened image whose colours have 16 bits, of which Pillow loads the upper 8: the tiles by which it loads the
    lower 8; None for other images."""
    swapped = []
    for tile in image.tile:
        mode, *more = (tile.args,) if isinstance(tile.args, str) else tile.args or ("",)
        if mode not in DEEP_COLOURS:
            return None
        mode = DEEP_COLOURS[mode]
        swapped.append(tile._replace(args=(mode, *more) if more else mode))
    return swapped or None


def is_dark(image: Image.Image) -> bool:
    """Whether colours of 16 bits, of which these are the upper 8, end where those of 14 or 12 bits do."""
    return max(high for _, high in image.getextrema()[:3]) <= RANGES["I;16"][-2] >> 8


def scale_colours(upper: Image.Image, lower: Image.Image) -> tuple[Image.Image, int]:
    """As `scale_samples`, of the two bytes of colours with or without transparency."""
    samples = np.asarray(upper).astype(np.uint16) * 256 + np.asarray(lower)
    top = 0
    for channels in (samples[..., 3:], samples[..., :3]):
        if channels.size:
            top = next(top for top in RANGES["I;16"] if channels.max() <= top)
            channels[...] = np.rint(channels * (255 / top))
    image = Image.fromarray(samples.astype(np.uint8), upper.mode)
    image.info = dict(upper.info)
    image.format = upper.format
    return image, top


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

"""Colour profiles, and samples with more than 8 bits, are compared with the definitions of the colour spaces."""

import io
import struct
import zlib
from collections.abc import Mapping

import numpy as np
import pytest
from pictures import make_tiff
from PIL import Image

from pipeline.images import colour
from pipeline.images.decode import decode, decode_each, inspect, to_rgb
from pipeline.images.opening import ImageLimits

LIMITS = ImageLimits(64_000_000, 8, 20)
RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (32, 32, 3), dtype=np.uint8)
# The columns are the primaries red, green and blue in XYZ, adapted to D50 (Bradford).
SRGB = np.array([[0.4361, 0.3851, 0.1431], [0.2225, 0.7169, 0.0606], [0.0139, 0.0971, 0.7141]])
ADOBE_RGB = np.array([[0.6097, 0.2053, 0.1492], [0.3111, 0.6257, 0.0632], [0.0195, 0.0609, 0.7446]])
DISPLAY_P3 = np.array([[0.5151, 0.2919, 0.1572], [0.2412, 0.6922, 0.0666], [-0.0011, 0.0419, 0.7841]])
D50 = (0.9642, 1.0, 0.8249)


def profile(space: bytes, tags: Mapping[bytes, bytes], pcs: bytes = b"XYZ ") -> bytes:
    """Return the bytes of a colour profile of version 2 for colours of the space `space`, such as b"RGB ".

    `tags` maps the names of tags to their data. `pcs` is the colour space to which the profile converts the colours.
    """
    body = b""
    table = struct.pack(">I", len(tags))
    at = 128 + 4 + 12 * len(tags)
    for name, data in tags.items():
        table += name + struct.pack(">II", at + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    head = struct.pack(
        ">I4xI4s4s4s12x4s", at + len(body), 0x02100000, b"prtr" if space == b"CMYK" else b"mntr", space, pcs, b"acsp"
    )
    return (head.ljust(68, b"\0") + xyz(D50)[8:]).ljust(128, b"\0") + table + body


def xyz(values) -> bytes:
    return b"XYZ \0\0\0\0" + struct.pack(">3i", *(round(65536 * value) for value in values))


def curve(gamma: float) -> bytes:
    return b"curv\0\0\0\0" + struct.pack(">IH", 1, round(256 * gamma))


def make_rgb_profile(primaries: np.ndarray, gamma: float) -> bytes:
    columns = {name: xyz(column) for name, column in zip((b"rXYZ", b"gXYZ", b"bXYZ"), primaries.T, strict=True)}
    return profile(b"RGB ", {b"wtpt": xyz(D50), **columns, **dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve(gamma))})


def make_cmyk_profile() -> bytes:
    """Return a CMYK profile in which pure cyan is the Lab colour (60, 0, -40), and white and black are unchanged."""
    grid = bytearray()
    for corner in np.ndindex(2, 2, 2, 2):
        lab = (60, 0, -40) if corner == (1, 0, 0, 0) else (100 * (sum(corner) == 0), 0, 0)
        grid += bytes((round(2.55 * lab[0]), 128 + lab[1], 128 + lab[2]))
    identity = bytes(range(256))
    unit = struct.pack(">9i", *(65536 * np.eye(3, dtype=int)).ravel().tolist())
    table = b"mft1\0\0\0\0" + bytes((4, 3, 2, 0)) + unit + 4 * identity + bytes(grid) + 3 * identity
    return profile(b"CMYK", {b"wtpt": xyz(D50), b"A2B0": table}, b"Lab ")


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    image.save(buffer := io.BytesIO(), kind, **options)
    return buffer.getvalue()


def png_of_colours(samples: np.ndarray) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width, channels = samples.shape
    head = struct.pack(">IIBBBBB", width, height, 16, {3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    chunks = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def to_srgb(colours: np.ndarray, primaries: np.ndarray, gamma: float) -> np.ndarray:
    """Return the expected sRGB colours in [0, 255] of RGB colours in [0, 255] with these primaries and this gamma, by
    the definitions of the colour spaces."""
    return to_srgb_of_light((colours / 255) ** gamma @ (np.linalg.inv(SRGB) @ primaries).T)


def to_srgb_of_light(linear: np.ndarray) -> np.ndarray:
    linear = np.clip(linear, 0, 1)
    return 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True}), ("JPEG", {"quality": 100, "subsampling": 0})],
)
@pytest.mark.parametrize("primaries", [ADOBE_RGB, DISPLAY_P3], ids=["Adobe RGB", "Display P3"])
def test_colours_are_converted_from_their_profile_to_srgb(kind: str, options: dict, primaries: np.ndarray) -> None:
    smooth = np.asarray(Image.fromarray(COLOURS[:4, :4]).resize((32, 32), Image.Resampling.BICUBIC))
    data = encoded(Image.fromarray(smooth), kind, icc_profile=make_rgb_profile(primaries, 2.2), **options)
    right = to_srgb(smooth, primaries, 2.2)
    assert np.abs(right - smooth).max() > 20
    opened = Image.open(io.BytesIO(data))
    for image in (decode(data, LIMITS), to_rgb(opened, LIMITS), *decode_each(data, LIMITS, [32])):
        assert np.abs(np.asarray(image) - right).mean() < 1.5


def test_grey_and_cmyk_colours_are_converted_by_their_profiles() -> None:
    linear = profile(b"GRAY", {b"wtpt": xyz(D50), b"kTRC": curve(1)})
    # With a linear profile, the grey level 55 of 255 is 21.6 % of the light of white.
    grey = Image.new("L", (16, 16), 55)
    samples = np.full((16, 16), 55 * 257, np.uint16)
    samples[9, 9] = 65535
    for image in (grey, grey.convert("LA"), Image.fromarray(samples)):
        pixel = decode(encoded(image, "PNG", icc_profile=linear), LIMITS).getpixel((0, 0))
        assert pixel == pytest.approx((128, 128, 128), abs=2)
    cyan = Image.new("CMYK", (16, 16), (255, 0, 0, 0))
    pixel = decode(encoded(cyan, "TIFF", icc_profile=make_cmyk_profile()), LIMITS).getpixel((0, 0))
    # These are the values of the function f for X, Y and Z in the CIE's definition of Lab.
    lab = np.array([76 / 116, 76 / 116, 76 / 116 + 40 / 200])
    assert pixel == pytest.approx(to_srgb_of_light(np.linalg.inv(SRGB) @ (lab**3 * D50)), abs=3)
    white = decode(encoded(Image.new("CMYK", (16, 16)), "TIFF", icc_profile=make_cmyk_profile()), LIMITS)
    assert white.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    "broken",
    [
        b"no profile",
        make_rgb_profile(ADOBE_RGB, 2.2)[:200],
        make_cmyk_profile(),
        make_rgb_profile(ADOBE_RGB / 9, 2.2),
        bytes(5 << 20),
    ],
    ids=["text", "cut", "of other colours", "white is dark", "5 MB"],
)
def test_an_image_with_a_broken_profile_is_decoded_and_counted(broken: bytes) -> None:
    data = encoded(Image.fromarray(COLOURS), "TIFF", icc_profile=broken)
    assert np.array_equal(np.asarray(decode(data, LIMITS)), COLOURS)
    assert inspect(lambda: data, LIMITS, ()).notes == [colour.BROKEN]


@pytest.mark.parametrize(("top", "noted"), [(4095, True), (16383, True), (65535, False)])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_16_bit_samples_are_scaled_from_the_smallest_range_that_contains_them(
    kind: str, top: int, noted: bool, channels: int
) -> None:
    samples = RNG.integers(0, top + 1, (40, 60)).astype(np.uint16)
    samples[0, :2] = 0, top
    if channels == 1:
        data = encoded(Image.fromarray(samples), kind)
    else:
        samples = np.stack([samples, samples.T.reshape(40, 60), samples // 2, samples * 0 + 65535][:channels], axis=-1)
        data = png_of_colours(samples) if kind == "PNG" else make_tiff(samples, 2, extras=(2,) * (channels == 4))
    pixels = np.asarray(decode(data, LIMITS)).astype(float)
    right = samples[..., :3] if channels > 1 else np.repeat(samples[..., None], 3, -1)
    np.testing.assert_allclose(pixels, right * (255 / top), atol=0.51 if channels == 1 or noted else 1)
    notes = inspect(lambda: data, LIMITS, ()).notes
    assert len(notes) == noted and all(str(top) in note for note in notes)

"""Many kinds of images: each is decoded correctly, or refused for the right reason."""

import io
import os
import pickle
import resource
import struct
import sys
import warnings
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, features
from slow_images import many_scans

from pipeline.compute.workers import Failure, isolated_map
from pipeline.errors import InputError
from pipeline.images import opening
from pipeline.images.decode import (
    LACKS_MEMORY,
    ImageProcess,
    UnreadableImage,
    check_header,
    decode,
    decode_each,
    decode_pixels,
    inspect,
    written_description,
)
from pipeline.images.opening import ImageLimits
from pipeline.images.preprocess import RESIZING

LIMITS = ImageLimits(max_pixels=64_000_000, min_side=8, max_aspect=20)
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (40, 60, 3), dtype=np.uint8)
PHOTOGRAPH = Image.fromarray(PIXELS)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def with_comment(data: bytes, comment: bytes) -> bytes:
    """Return the JPEG `data` with a comment directly after its first marker."""
    return data[:2] + b"\xff\xfe" + struct.pack(">H", len(comment) + 2) + comment + data[2:]


def png(width: int, height: int, extra: bytes = b"") -> bytes:
    """Return a black one-bit PNG of width x height pixels, which has few bytes. The bytes `extra` are inserted as
    chunks before the pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes(((width + 7) // 8 + 1) * height)))
    return b"\x89PNG\r\n\x1a\n" + header + extra + data + chunk(b"IEND", b"")


def with_chunk(name: bytes, data: bytes, before: bytes = b"IDAT") -> bytes:
    """Return the bytes of the test photo as a PNG with a further chunk.

    `name` and `data` are the name and the content of the further chunk. It is inserted before the chunk with the name
    `before`, or before other bytes `before`.
    """
    at = PNG.index(before) - (4 if before == b"IDAT" else 0)
    return PNG[:at] + chunk(name, data) + PNG[at:]


JPEG = encoded(PHOTOGRAPH, "JPEG")
PNG = encoded(PHOTOGRAPH, "PNG")
GIF = encoded(PHOTOGRAPH, "GIF", save_all=True, append_images=[PHOTOGRAPH.rotate(180)])
NOT_FINITE = PIXELS[..., 0].astype(np.float32) / 255
NOT_FINITE[3, 4] = np.nan

KINDS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", *(["AVIF"] if features.check("avif") else []))
ACCEPTED = {
    **{kind: encoded(PHOTOGRAPH, kind) for kind in KINDS},
    **{mode: encoded(PHOTOGRAPH.convert(mode), "PNG") for mode in ("1", "L", "LA", "P", "RGBA")},
    "CMYK": encoded(PHOTOGRAPH.convert("CMYK"), "JPEG"),
    "palette with alpha": encoded(PHOTOGRAPH.convert("P"), "PNG", transparency=bytes(range(256))),
    "grey with a transparent value": encoded(PHOTOGRAPH.convert("L"), "PNG", transparency=3),
    "bad colour profile": encoded(PHOTOGRAPH, "JPEG", icc_profile=b"no profile"),
    "bad EXIF": encoded(PHOTOGRAPH, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"),
    "trailing junk": JPEG + b"junk" * 99,
    "as if with many scans in a comment and behind its end": with_comment(JPEG, b"\xff\xda" * 99) + b"\xff\xda" * 99,
    "progressive": encoded(PHOTOGRAPH, "JPEG", progressive=True),
    "animation": GIF,
    "PNG with 80 MB of compressed text": with_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(80 << 20))),
    "PNG with 70 MB of text": with_chunk(b"tEXt", b"a\0" + b"b" * (70 << 20)),
    "PNG with 6 MB of text behind its pixels": with_chunk(
        b"iTXt", b"a\0\1\0\0\0" + zlib.compress(bytes(6 << 20)), PNG[-12:]
    ),
    "PNG with 5 MB of colour profile": with_chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(5 << 20))),
    "MPO": encoded(PHOTOGRAPH, "MPO", save_all=True, append_images=[PHOTOGRAPH.rotate(180)]),
    "MPO with a broken index": encoded(PHOTOGRAPH, "MPO", save_all=True, append_images=[PHOTOGRAPH]).replace(
        b"MPF\0II*\0", b"MPF\0II*\1"
    ),
}
REFUSED: dict[str, tuple[bytes | Callable[[], bytes], str]] = {
    "zero bytes": (b"", "not-an-image"),
    "HTML": (b"<html><body>404", "not-an-image"),
    "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not-an-image"),
    "PostScript": (encoded(PHOTOGRAPH, "EPS"), "not-an-image"),
    "PNG of no width": (png(0, 40), "damaged"),
    "PNG with a wrong checksum": (PNG.replace(PNG[29:33], b"wrng"), "damaged"),
    "JPEG of no height": (
        JPEG[: JPEG.index(b"\xff\xc0") + 5] + bytes(2) + JPEG[JPEG.index(b"\xff\xc0") + 7 :],
        "damaged",
    ),
    "GIF without a frame": (GIF[: GIF.index(b"\x2c")] + b";", "damaged"),
    "JPEG without its last 2 bytes": (JPEG[:-2], "truncated"),
    "half a JPEG": (JPEG[: len(JPEG) // 2], "truncated"),
    "PNG without its end": (PNG[:-12], "truncated"),
    "PNG without its last byte": (PNG[:-1], "truncated"),
    "half a PNG": (PNG[: len(PNG) // 2], "truncated"),
    "144 million pixels in 18 KB": (lambda: png(12_000, 12_000), "too-large"),
    "just too large": (lambda: png(8_001, 8_000), "too-large"),
    "one pixel": (png(1, 1), "too-small"),
    "line": (png(1, 2000), "too-small"),
    "ribbon": (png(8, 161), "too-elongated"),
    "13,000 scans in 190 KB": (lambda: many_scans(13_000), "too-slow"),
    "101 scans": (many_scans(101, 40), "too-slow"),
    "101 scans behind a comment": (with_comment(many_scans(101, 40), b"\xff\xd9" * 9), "too-slow"),
    "NaN": (encoded(Image.fromarray(NOT_FINITE), "TIFF"), "not-finite"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image = decode(ACCEPTED[name], LIMITS)
    assert image.mode == "RGB" and image.size == (60, 40)
    if "alpha" not in name and name != "1":
        assert np.asarray(image).mean() == pytest.approx(PIXELS.mean(), abs=2)
    if name in ("PNG", "BMP", "TIFF", "PPM"):
        assert np.array_equal(np.asarray(image), PIXELS)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    data, reason = REFUSED[name]
    data = data() if callable(data) else data
    with pytest.raises(UnreadableImage) as caught:
        decode(data, LIMITS)
    assert caught.value.reason == reason
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def decode_within(megabytes_and_data: tuple[int, bytes]) -> tuple[int, int]:
    """Decode a photo within a limit of memory, and return the size of the photo.

    The argument has a number of MiB and the bytes of the photo. While it decodes the photo, this process may use this
    number of MiB beyond its present memory.
    """
    megabytes, data = megabytes_and_data
    before = resource.getrlimit(resource.RLIMIT_AS)
    decode(JPEG, LIMITS)  # The first call imports the modules for decoding.
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (megabytes << 20), before[1]))
    try:
        return decode(data, LIMITS).size
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_photo_that_does_not_fit_in_memory_is_not_called_damaged() -> None:
    """Checks that a photo is rejected as out-of-memory if memory is lacking. The decoded photo needs 80 MB, and libjpeg
    needs 60 MB more because the photo is progressive. If libjpeg lacks memory, it reports a damaged file."""
    large = Image.linear_gradient("L").resize((5000, 4000)).convert("RGB")
    png = encoded(large, "PNG")
    progressive = encoded(large, "JPEG", progressive=True)
    items = [(50, JPEG), (50, png), (50, JPEG[: len(JPEG) // 2]), (110, progressive), (400, progressive)]
    small, *others, whole = isolated_map(decode_within, items, 1)
    assert (small, whole) == ((60, 40), (5000, 4000))
    lacking = Failure(f"out-of-memory: {LACKS_MEMORY}")
    assert [others[0], others[2]] == [lacking, lacking] and others[1].reason.startswith("truncated: ")


def decode_small(data: bytes) -> tuple[int, int]:
    (image,) = decode_each(data, LIMITS, [64])
    return image.size


def test_a_progressive_jpeg_that_is_decoded_smaller_may_use_the_memory_for_its_full_size() -> None:
    """Checks that the limit of memory depends on the full size of a JPEG. libjpeg needs 140 MB for the coefficients of
    this photo, even if it is decoded to an eighth of its sides."""
    large = encoded(Image.new("RGB", (6000, 4000), "teal"), "JPEG", progressive=True, subsampling=0)
    assert list(isolated_map(decode_small, [large], 1)) == [(750, 500)]


def test_a_small_png_with_a_long_text_after_its_pixels_has_enough_memory() -> None:
    png = encoded(Image.new("RGB", (60, 40), "teal"), "PNG")
    body = b"iTXt" + b"k\0\0\0\0\0" + b"x" * 60_000_000
    at = png.rindex(b"IEND") - 4
    long = png[:at] + struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body)) + png[at:]
    assert list(isolated_map(decode_small, [long], 1)) == [(60, 40)]


def decode_within_little(data: bytes) -> tuple[int, int]:
    """Decode a photo within a small limit of memory, and return the size of the photo.

    The limit is the limit for a photo of this size, with its constant part reduced to 4 MiB.
    """
    opening.BASE_BYTES = 4 << 20
    os.cpu_count = lambda: 1
    return decode(data, LIMITS).size


def test_scan_markers_are_counted_across_the_ends_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).choice(np.array([0xFF, opening.SCAN_MARKER, 0], np.uint8), 5000).tobytes()
    for size in (1, 7, 4999, 5000, 1 << 20):
        monkeypatch.setattr(opening, "COUNTED_BYTES", size)
        for part in (data, data[:1], b""):
            assert opening.count_scan_markers(part) == part.count(b"\xff\xda")


@pytest.mark.skipif(sys.platform != "linux" or not features.check("avif"), reason="needs Linux and AVIF")
def test_a_photo_with_more_pixels_than_its_header_declares_is_refused() -> None:
    """Checks that an AVIF of 16 million pixels, whose header is changed to declare 64 x 64 pixels, is refused for its
    need of memory. The unchanged AVIF is decoded.

    The unchanged AVIF is decoded last, because the changed AVIF could use the memory that it has left.
    """
    honest = encoded(Image.new("L", (4000, 4000), 77), "AVIF", speed=10, quality=10)
    at = honest.index(b"ispe") + 8
    lying = honest[:at] + struct.pack(">II", 64, 64) + honest[at + 8 :]
    assert Image.open(io.BytesIO(lying)).size == (64, 64)
    results = list(isolated_map(decode_within_little, [lying, ACCEPTED["AVIF"], honest], 1))
    assert isinstance(results[0], Failure) and results[1:] == [(60, 40), (4000, 4000)]


def test_reading_a_hostile_header_ends_within_a_second_of_its_limit() -> None:
    """Checks that `check_header` refuses a PNG with more than 4 profiles, and a JPEG with 40 MB of fill bytes before a
    marker.

    Pillow reads fill bytes singly, and would need about 10 seconds for this JPEG.
    """
    profile = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1000)))
    at = PNG.index(b"IDAT") - 4
    four, five = (PNG[:at] + count * profile + PNG[at:] for count in (4, 5))
    filled = JPEG[:2] + b"\xff" * 40_000_000 + JPEG[2:]
    with ImageProcess(partial(check_header, limits=LIMITS)) as check:
        check(four)
        check(JPEG)
        for data, reason in [(five, "damaged: the PNG has more than 4"), (filled, "too-slow: reading its header")]:
            with pytest.raises(InputError, match=reason):
                check(data)
        check(PNG)
    with pytest.raises(UnreadableImage, match="the PNG has more than 4"):
        decode(five, LIMITS)
    assert np.array_equal(np.asarray(decode(four, LIMITS)), PIXELS)


def test_a_jpeg_with_a_hundred_scans_is_decoded() -> None:
    assert decode(many_scans(100, 40), LIMITS).size == (40, 40)


def test_transparent_pixels_become_white() -> None:
    clear = Image.new("RGBA", (10, 10), (10, 20, 30, 0))
    assert (np.asarray(decode(encoded(clear, "PNG"), LIMITS)) == 255).all()


def test_a_jpeg_that_is_far_too_large_is_decoded_smaller_and_looks_the_same() -> None:
    large = PHOTOGRAPH.resize((1600, 1200), Image.Resampling.BICUBIC)
    data = encoded(large, "JPEG", quality=95)
    sizes = {side: decode(data, LIMITS, side).size for side in (700, 300, 299, 120, 20)}
    assert sizes == {700: (1600, 1200), 300: (800, 600), 299: (800, 600), 120: (400, 300), 20: (200, 150)}
    whole, smaller = (decode(data, LIMITS, side).resize((160, 120), Image.Resampling.BILINEAR) for side in (None, 120))
    difference = np.asarray(whole, np.float32) - np.asarray(smaller, np.float32)
    assert np.abs(difference).mean() < 2 and np.asarray(whole).std() > 20
    assert decode(encoded(large, "PNG"), LIMITS, 20).size == (1600, 1200)


@pytest.mark.parametrize("size", [(1023, 1537), (257, 3000), (90, 70)])
def test_one_decoding_gives_images_of_several_sizes(size: tuple[int, int]) -> None:
    """Checks the images that `decode_each` returns for several sides. Each image has the size of the image that
    `decode` returns for the same side. The image for the largest side is identical to the image of `decode`, and the
    other images are similar. A PNG is decoded in full size."""
    smooth = Image.fromarray(PIXELS[:9, :9]).resize(size, Image.Resampling.BICUBIC)
    data = encoded(smooth, "JPEG", quality=95)
    sides = [20, 448, 120, None, 224]
    alone = [decode(data, LIMITS, side) for side in sides]
    for asked in (sides, sides[:3]):
        largest = None if None in asked else max(asked)
        for side, image, made in zip(
            asked, alone[sides.index(asked[0]) :], decode_each(data, LIMITS, asked), strict=False
        ):
            assert made.size == image.size
            off = np.abs(np.asarray(made, np.float32) - np.asarray(image, np.float32))
            assert off.max() == 0 if side == largest else off.mean() < 1
    png = encoded(smooth, "PNG")
    assert [image.size for image in decode_each(png, LIMITS, sides)] == [size] * len(sides)


def smooth_image(rng: np.random.Generator, mode: str = "RGB") -> Image.Image:
    """Return a random image that compresses like a photo, with sides of 30 to 399 pixels."""
    size = (int(rng.integers(30, 400)), int(rng.integers(30, 400)))
    coarse = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    grain = np.asarray(coarse, np.float32) + rng.normal(0, 5, size[::-1])[..., None]
    return Image.fromarray(grain.clip(0, 255).astype(np.uint8)).convert(mode)


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Return the bytes of an image with random damage: cut short, with flipped bits, with removed bytes, or with zeros
    in place of bytes."""
    start = int(rng.integers(2, len(data)))
    length = int(rng.integers(1, 2000))
    match rng.integers(5):
        case 0:
            return data[:start]
        case 1:
            return data[: -int(rng.integers(1, 50))]
        case 2:
            flipped = bytearray(data)
            for place in rng.integers(len(data), size=rng.integers(1, 4)).tolist():
                flipped[place] ^= 1 << int(rng.integers(8))
            return bytes(flipped)
        case 3:
            return data[:start] + data[start + length :]
    return data[:start] + bytes(len(data[start : start + length])) + data[start + length :]


def random_jpeg(rng: np.random.Generator) -> bytes:
    mode = ("RGB", "RGB", "L", "CMYK")[rng.integers(4)]
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = int(rng.integers(1, 9))
    return encoded(
        smooth_image(rng, mode), "JPEG", quality=int(rng.integers(40, 96)), progressive=bool(rng.integers(2)),
        restart_marker_rows=int(rng.integers(2)), **({"exif": exif} if rng.integers(2) else {}),
        **({"subsampling": int(rng.integers(3))} if mode == "RGB" else {}),
    )  # fmt: skip


def size_or_reason(function: Callable[[], tuple[int | None, int | None]]) -> tuple[int | None, int | None] | str:
    try:
        return function()
    except UnreadableImage as error:
        return str(error)


def test_inspecting_a_jpeg_at_an_eighth_of_its_size_gives_the_result_of_full_decoding() -> None:
    """Checks that `inspect` and `decode` give the same size, or the same reason for a rejection, for 1,000 damaged and
    100 intact JPEGs. `inspect` decodes a JPEG at a reduced size."""
    rng = np.random.default_rng(0)
    reasons = []
    for number in range(1100):
        data = random_jpeg(rng)
        data = data if number < 100 else damaged(data, rng)
        whole = size_or_reason(lambda data=data: decode(data, LIMITS).size)
        found = size_or_reason(lambda data=data: inspect(lambda *_: data, LIMITS, ("", None, None))[:2])
        assert found == whole, number
        reasons.append(whole.partition(":")[0] if isinstance(whole, str) else "decoded")
    assert min(map(reasons.count, ("decoded", "truncated", "damaged"))) >= 10


def test_torchvision_decodes_jpegs_to_the_pixels_of_pillow_and_refuses_what_pillow_refuses() -> None:
    rng = np.random.default_rng(1)
    by_torchvision = 0
    for number in range(400):
        data = random_jpeg(rng)
        data = data if number % 4 == 0 else damaged(data, rng)
        whole = size_or_reason(lambda data=data: decode(data, LIMITS).size)
        if isinstance(whole, str):
            with pytest.raises(UnreadableImage) as refused:
                decode_pixels(data, LIMITS, [None, None])
            assert str(refused.value) == whole
            continue
        first, second = decode_pixels(data, LIMITS, [None, None])
        assert np.array_equal(np.asarray(first), np.asarray(decode(data, LIMITS)))
        by_torchvision += isinstance(second, np.ndarray)
    assert by_torchvision >= 50


def decode_and_write(data: bytes) -> tuple[int, ...]:
    """Decode a photo, and write a line to stderr after that."""
    (pixels,) = decode_pixels(data, LIMITS, [None])
    os.write(2, b"decoded\n")
    return pixels.shape if isinstance(pixels, np.ndarray) else ()


def test_decoding_a_jpeg_with_a_small_fault_writes_nothing_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    data = encoded(PHOTOGRAPH, "JPEG", quality=95)
    faulty = data[: len(data) // 2] + b"\xff\xd0" + data[len(data) // 2 :]
    decode_pixels(faulty, LIMITS, [None])
    assert "Corrupt JPEG data" in capfd.readouterr().err  # in this process, libjpeg writes a line
    assert list(isolated_map(decode_and_write, [faulty, data], 1)) == [(40, 60, 3)] * 2
    assert capfd.readouterr().err == "decoded\n" * 2


def test_decoding_with_torchvision_keeps_the_limits_on_pixels_scans_and_time() -> None:
    data = encoded(PHOTOGRAPH.resize((900, 900)), "JPEG")
    with pytest.raises(UnreadableImage, match="too-large: the photo has 900 x 900 pixels"):
        decode_pixels(data, ImageLimits(100_000, 8, 20), [None])
    with pytest.raises(UnreadableImage, match="too-slow: the JPEG has more than 100 scans"):
        decode_pixels(many_scans(101, 40), LIMITS, [None])
    slow = encoded(Image.linear_gradient("L").resize((6000, 6000)).convert("RGB"), "JPEG")
    with pytest.raises(UnreadableImage, match="too-slow: decoding takes more CPU time than"):
        decode_pixels(slow, ImageLimits(64_000_000, 8, 20, 0.001), [None])
    limited = partial(decode_pixels, limits=ImageLimits(64_000_000, 8, 20, 0.5), sides=[None])
    # This photo takes more than a second. An ordinary photo takes at most 0.1 s, even as the first of a process.
    slower = many_scans(100, 7000)
    outcomes = isolated_map(limited, [slower, data], 1, preload=RESIZING)
    failure, (pixels,) = outcomes
    assert isinstance(failure, Failure) and failure.reason.startswith("too-slow: decoding takes more CPU time than")
    assert isinstance(pixels, np.ndarray) and pixels.shape == (900, 900, 3)


def test_a_photo_is_turned_upright_by_its_exif_orientation() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # The camera was turned, so the photo must be rotated by 90 degrees clockwise.
    image = decode(encoded(PHOTOGRAPH, "JPEG", exif=exif, quality=95), LIMITS)
    assert image.size == (40, 60)
    expected = np.asarray(decode(encoded(PHOTOGRAPH, "JPEG", quality=95), LIMITS).rotate(-90, expand=True))
    assert np.array_equal(np.asarray(image), expected)


def test_a_photo_is_turned_upright_although_pillow_cannot_write_its_exif_again() -> None:
    """Checks a photo whose EXIF data has a number as the name of the camera. Pillow reads this number, but cannot write
    it again. The size that `inspect` returns is the size of the decoded photo."""
    # The tag Model with one value of the type double, which is stored after the entries, and the orientation.
    model = struct.pack("<HHII", 0x0110, 12, 1, 38)
    entry = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    data = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + model + entry + struct.pack("<Id", 0, 1e300)
    photo = encoded(PHOTOGRAPH, "JPEG", exif=data, quality=95)
    upright = np.asarray(decode(encoded(PHOTOGRAPH, "JPEG", quality=95), LIMITS).rotate(-90, expand=True))
    assert np.array_equal(np.asarray(decode(photo, LIMITS)), upright)
    assert np.array_equal(np.asarray(decode_pixels(photo, LIMITS, [None])[0]), upright)
    assert inspect(lambda *_: photo, LIMITS, ("", None, None))[:2] == (40, 60)


def test_an_orientation_that_is_stored_as_a_float_turns_a_photo() -> None:
    """Checks the decoded photo, and that the size that `inspect` reads in the header is the size of this photo."""
    orientation = struct.pack("<HHII", 0x0112, 12, 1, 26) + struct.pack("<Id", 0, 6.0)
    photo = encoded(PHOTOGRAPH, "JPEG", exif=b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1) + orientation, quality=95)
    upright = decode(encoded(PHOTOGRAPH, "JPEG", quality=95), LIMITS).rotate(-90, expand=True)
    assert np.array_equal(np.asarray(decode(photo, LIMITS)), np.asarray(upright))
    assert inspect(lambda *_: photo, LIMITS, ("", None, None))[:2] == upright.size


def test_the_limit_of_pixels_is_the_configured_one_and_not_that_of_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert decode(PNG, LIMITS).size == (60, 40)
    assert Image.MAX_IMAGE_PIXELS == 1000


def with_iptc_captions(data: bytes, *captions: str) -> bytes:
    """Return the JPEG `data` with captions in its IPTC block, as photo editors write them."""
    records = b"".join(b"\x1c\x02\x78" + struct.pack(">H", len(text)) + text.encode() for text in captions)
    block = b"Photoshop 3.0\x008BIM\x04\x04\x00\x00" + struct.pack(">I", len(records)) + records
    return data[:2] + b"\xff\xed" + struct.pack(">H", len(block) + 2) + block + data[2:]


def test_the_first_of_several_iptc_captions_is_the_description() -> None:
    photo = encoded(PHOTOGRAPH, "JPEG")
    assert written_description(with_iptc_captions(photo, "Anna and her dog"), LIMITS) == "Anna and her dog"
    assert (
        written_description(with_iptc_captions(photo, "Anna and her dog", "on the beach"), LIMITS) == "Anna and her dog"
    )


def test_several_iptc_captions_do_not_hide_the_exif_description() -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.ImageDescription] = "a red house by the sea"
    photo = with_iptc_captions(encoded(PHOTOGRAPH, "JPEG", exif=exif), "one", "two")
    assert written_description(photo, LIMITS) == "a red house by the sea"

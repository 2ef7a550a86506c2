"""Tests of TIFF layouts: each is decoded to the right pixels, or refused with its name."""

import itertools

import numpy as np
import pytest
from pictures import make_tiff
from PIL import Image

from pipeline.images.colour import OWN_RANGE
from pipeline.images.decode import UnreadableImage, decode, inspect
from pipeline.images.opening import FOURTH_BAND, ImageLimits

LIMITS = ImageLimits(max_pixels=1_000_000, min_side=8, max_aspect=20)
HEIGHT = 24
WIDTH = 20
MAX_BANDS = 13
RNG = np.random.default_rng(7)
BANDS = np.stack(
    [
        np.asarray(Image.fromarray(RNG.random((5, 5), np.float32)).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR))
        for _ in range(MAX_BANDS)
    ],
    axis=-1,
).astype(float)
SHARES = (BANDS - BANDS.min((0, 1))) / np.ptp(BANDS, (0, 1))
"""The true image (HEIGHT, WIDTH, MAX_BANDS). Each band is scaled to the range from 0 to 1."""
COLOURS = {0: 1, 1: 1, 2: 3, 5: 4}
"""PhotometricInterpretation -> the number of bands that are colours."""
ALPHA = (1, 2)
READ = {
    *itertools.product((0,), ("u1",), (1,), ((),)),
    *itertools.product((1,), ("u1", "u2", "i2", "i4", "f4"), (1,), ((),)),
    *itertools.product((1,), ("u1",), (2,), ((0,), (2,))),
    *itertools.product((2,), ("u1", "u2"), (3, 4), ((), (0,), (1,), (2,))),
    *itertools.product((5,), ("u1", "u2"), (4,), ((),)),
}
"""Layouts that must be read in one plane: PhotometricInterpretation, type, number of bands and ExtraSamples.

These layouts must be read in both byte orders, with and without compression. Other layouts may be read or refused, but
must not be decoded to wrong pixels.
"""


def samples_of(shares: np.ndarray, type: str) -> np.ndarray:
    """Scale values in [0, 1] to the whole range of an integer type, with at most 52 bits of precision. For a
    floating-point type, the values are not scaled."""
    kind = np.dtype(type).kind
    bits = 8 * np.dtype(type).itemsize
    if kind == "f":
        return shares.astype(type)
    levels = np.round(shares * (2.0 ** min(bits, 52) - 1)) * 2.0 ** max(0, bits - 52)
    return (levels - (2.0 ** (bits - 1) if kind == "i" else 0)).astype(type)


def right_picture(photometric: int, bands: int, extras: tuple[int, ...]) -> np.ndarray:
    """Return the right colours (HEIGHT, WIDTH, 3), from 0 to 1, of a TIFF file on white.

    The bands of the file are the first bands of SHARES. `photometric` is the value of PhotometricInterpretation, and
    `extras` are the values of ExtraSamples.
    """
    own = COLOURS[photometric]
    shares = SHARES[..., :own]
    if photometric == 5:
        shares = (1 - shares[..., :3]) * (1 - shares[..., 3:])
    picture = np.broadcast_to(1 - shares if photometric == 0 else shares, (HEIGHT, WIDTH, 3))
    alpha = SHARES[..., own : own + 1] if extras and extras[0] in ALPHA else 1
    return picture * alpha + 1 - alpha


def least_correlation(image: Image.Image, right: np.ndarray) -> float:
    """Return the smallest correlation of a channel of the decoded `image` with the same channel of the true image
    `right`."""
    pixels = np.asarray(image, float)
    assert pixels.shape == right.shape and pixels.std((0, 1)).min() > 1
    return min(np.corrcoef(pixels[..., one].ravel(), right[..., one].ravel())[0, 1] for one in range(3))


@pytest.mark.parametrize(
    ("photometric", "bands"),
    [(photometric, bands) for photometric, own in COLOURS.items() for bands in (1, 2, 3, 4, 5, 13) if bands >= own],
)
def test_each_layout_is_decoded_correctly_or_refused_with_its_name(photometric: int, bands: int) -> None:
    own = COLOURS[photometric]
    further = bands - own
    types = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "f4", "f8")
    first_extras = (None, 0, 1, 2) if further > 0 else (None,)
    for type, first, planes, order, (deflate, tile) in itertools.product(
        types, first_extras, (False, True), "<>", ((False, 0), (True, 0), (True, 16))
    ):
        extras = () if first is None else (first, *[0] * (further - 1))
        shares = SHARES[..., :bands].copy()
        if first == 1:  # With ExtraSamples 1, the stored colours are already multiplied by alpha.
            shares[..., :own] *= shares[..., own : own + 1]
        data = make_tiff(samples_of(shares, type), photometric, planes, extras, order, deflate, tile)
        layout = f"{photometric} {type} {bands} {extras} {planes} {order} {deflate} {tile}"
        try:
            image = decode(data, LIMITS)
        except UnreadableImage as error:
            assert (photometric, type, bands, extras) not in READ or planes and further, layout
            names = (
                f"unsupported-tiff: the TIFF has {bands} band{'s' * (bands > 1)} of {8 * np.dtype(type).itemsize} bits",
                {"u": "unsigned", "i": "signed", "f": "floating-point"}[np.dtype(type).kind],
                "separate planes" if planes else "one plane",
                f"PhotometricInterpretation {photometric}",
                f"ExtraSamples {', '.join(map(str, extras)) or 'not given'}",
                "gdal_translate -b 1 ",
            )
            assert all(name in str(error) for name in names), (layout, str(error))
        else:
            assert least_correlation(image, right_picture(photometric, bands, extras)) > 0.99, layout


@pytest.mark.parametrize(
    ("type", "marked", "text"),
    [("f4", -9999, b"-9999\0"), ("f4", np.nan, b"nan\0"), ("f4", -3.4028234663852886e38, b"-3.4028234663852886e+38\0"),
     ("i2", -32768, b" -32768 \0"), ("u2", 65535, b"65535\0")],
)  # fmt: skip
def test_samples_without_data_are_white_and_do_not_move_the_range(type: str, marked: float, text: bytes) -> None:
    top = 255 if type == "f4" else 4095
    samples = np.round(top * SHARES[..., :1]).astype(type)
    samples[3:6, 4:9] = marked
    image = decode(make_tiff(samples, 1, tags={42113: (2, text)}), LIMITS)
    right = 255 * SHARES[..., 0]
    right[3:6, 4:9] = 255
    np.testing.assert_allclose(np.asarray(image)[..., 0], right, atol=1.01)


def test_a_nodata_tag_that_is_not_text_is_ignored() -> None:
    samples = samples_of(SHARES[..., :1], "u2")
    marked = decode(make_tiff(samples, 1, tags={42113: (7, b"-9999\0")}), LIMITS)
    assert marked.tobytes() == decode(make_tiff(samples, 1), LIMITS).tobytes()


@pytest.mark.parametrize("order", "<>")
def test_colours_of_12_bits_with_a_fourth_band_are_scaled_as_without_it(order: str) -> None:
    samples = samples_of(SHARES[..., :4], "u2") // 16
    pictures = [decode(make_tiff(samples[..., :3], 2, order=order), LIMITS)]
    pictures.append(decode(make_tiff(samples, 2, extras=(0,), order=order), LIMITS))
    assert pictures[0].tobytes() == pictures[1].tobytes() and np.asarray(pictures[0]).max() == 255


@pytest.mark.parametrize("unit", [1, 257])
def test_a_palette_has_levels_of_8_or_of_16_bits(unit: int) -> None:
    samples = samples_of(SHARES[..., :1], "u1")
    palette = RNG.integers(0, 256, (3, 256))
    data = make_tiff(samples, 3, tags={320: (3, (unit * palette).ravel().tolist())})
    assert (np.asarray(decode(data, LIMITS)) == palette.T[samples[..., 0]]).all()


def test_samples_and_bands_without_a_stated_meaning_are_noted() -> None:
    """Checks the notes about a sample of -9999 without a tag for missing data, and about a fourth band without
    ExtraSamples."""
    samples = SHARES[..., :1].astype(np.float32)
    samples[3, 4] = -9999
    assert inspect(lambda: make_tiff(samples, 1), LIMITS, ()).notes == [OWN_RANGE]
    colours = samples_of(SHARES[..., :4], "u1")
    assert inspect(lambda: make_tiff(colours, 2), LIMITS, ()).notes == [FOURTH_BAND]
    assert inspect(lambda: make_tiff(colours, 2, extras=(0,)), LIMITS, ()).notes == []


RGB = samples_of(SHARES[..., :3], "u1")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            make_tiff(samples_of(SHARES[..., :3], "u2") // 16, 2, planes=True),
            "unsupported-tiff: .*only 12 or 14 of its 16 bits",
        ),
        (make_tiff(samples_of(SHARES, "u1"), 1, True, [0] * 12), "unsupported-tiff: the TIFF has 13 bands of 8 bits"),
        (make_tiff(RGB, 2, tags={259: (3, [34887])}), "unsupported-tiff: .*Compression 34887"),
        (make_tiff(RGB, 2, tags={262: (3, [32803])}), "unsupported-tiff: .*PhotometricInterpretation 32803"),
        (make_tiff(RGB, 2, tags={258: (3, [5, 6, 5])}), "unsupported-tiff: the TIFF has 3 bands of various bits"),
        (b"MM\0+\0\x08\0\0" + bytes(99), "unsupported-tiff: a BigTIFF in big-endian order"),
        (make_tiff(RGB, 2, tile=16, tags={322: (4, [65536]), 323: (4, [65536])}), "too-large: the tiles"),
        (b"II*\0" + bytes(99), "damaged: the tags"),
        (make_tiff(RGB, 2)[:1000], "damaged: the tags"),
    ],
)
def test_other_unusable_tiffs_are_refused_for_their_own_reason(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableImage, match=reason):
        decode(data, LIMITS)

"""Colour histograms, compared with NumPy's histograms."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.encoders.colours import ColourBins, ColourHistograms
from pipeline.encoders.image_encoder import ImageEncoder
from pipeline.encoders.material import LibraryFiles
from pipeline.encoders.restore import restore_encoder
from pipeline.errors import IntegrityError
from pipeline.images.preprocess import Preprocessing


class Stored(NamedTuple):
    """The parts of a stored encoder."""

    settings: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]
    library: LibraryFiles | None = None


WHOLE = Preprocessing(30, None, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), "bilinear")


def make_encoder(levels: int = 8, bands: int = 3, band_levels: int = 4) -> ColourHistograms:
    return ColourHistograms(WHOLE, ColourBins(levels, bands, band_levels))


def draw_pixels(count: int = 4, height: int = 30) -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=(count, height, 30, 3), dtype=np.uint8)


def histogram(pixels: np.ndarray, levels: int) -> np.ndarray:
    """Return the number of pixels in each of the levels ** 3 cells of a colour histogram, as NumPy counts them."""
    colours = pixels.reshape(-1, 3).astype(float)
    return np.histogramdd(colours, bins=[np.arange(levels + 1) * 256 / levels] * 3)[0].ravel()


@pytest.mark.parametrize("levels", [1, 2, 5, 6, 8, 16])
@pytest.mark.parametrize("bands", [1, 2, 3])
def test_the_features_are_the_histograms_of_the_image_and_of_its_bands(levels: int, bands: int) -> None:
    pixels = draw_pixels()
    found = make_encoder(levels, bands, 4)(torch.from_numpy(pixels)).numpy()
    for image, feature in zip(pixels, found, strict=True):
        rows = 30 // bands
        parts = [image[band * rows : (band + 1) * rows] for band in range(bands)]
        expected = [histogram(image, levels), *(histogram(part, 4) for part in parts)]
        np.testing.assert_allclose(feature, np.concatenate(expected) / 900, rtol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 2, rtol=1e-5)
    assert found.shape[1] == make_encoder(levels, bands, 4).dim == levels**3 + bands * 64


def test_bands_cover_an_image_whose_height_they_do_not_divide() -> None:
    pixels = draw_pixels(height=31)
    found = make_encoder(2, 3, 1)(torch.from_numpy(pixels)).numpy()
    np.testing.assert_allclose(found[:, 8:] * 31, [[11, 10, 10]] * 4, rtol=1e-6)


def test_features_of_a_mirror_image_are_equal_and_those_of_an_upside_down_image_differ() -> None:
    picture = Image.fromarray(draw_pixels(1)[0])
    pictures = [
        picture,
        picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        picture.transpose(Image.Transpose.ROTATE_180),
    ]
    own, mirrored, turned = make_encoder().encode(pictures)
    np.testing.assert_array_equal(own, mirrored)
    np.testing.assert_array_equal(own[:512], turned[:512])
    assert np.abs(own - turned).max() > 0


def test_a_stored_encoder_gives_equal_features() -> None:
    encoder = make_encoder(6, 2, 3)
    stored = Stored(encoder.settings(), encoder.tensors())
    again = restore_encoder(ImageEncoder, stored)
    pixels = torch.from_numpy(draw_pixels())
    torch.testing.assert_close(again(pixels), encoder(pixels), rtol=0, atol=0)


@pytest.mark.parametrize("change", [{"levels": 17}, {"levels": 0}, {"bands": 10**9}, {"band_levels": 2.5}])
def test_settings_that_would_make_large_arrays_are_refused(change: dict) -> None:
    encoder = make_encoder()
    with pytest.raises(IntegrityError, match=r"must be a whole number from 1 to 16"):
        restore_encoder(ImageEncoder, Stored({**encoder.settings(), **change}, {}))

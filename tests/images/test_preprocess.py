"""Tests of preprocessing: the right square in the right size, and messages about unusable photos."""

import numpy as np
import pytest
from pictures import MEAN, STD, make_image
from PIL import Image

from pipeline.images.preprocess import Preprocessing, prepare
from pipeline.images.resize import resize


@pytest.mark.parametrize("size", [(90, 60), (60, 90), (61, 64), (60, 60)])
def test_the_central_square_equals_resizing_and_then_cropping(size: tuple[int, int]) -> None:
    image = make_image(1, size)
    scale = 32 / min(size)
    whole = image.resize((round(size[0] * scale), round(size[1] * scale)), Image.Resampling.BILINEAR)
    left, top = ((side - 24) // 2 for side in whole.size)
    expected = np.asarray(whole.crop((left, top, left + 24, top + 24)), np.float32)
    pixels = prepare(image, Preprocessing(32, 24, MEAN, STD))
    assert pixels.shape == (24, 24, 3) and pixels.dtype == np.uint8
    # The square that is cut out in one step may be up to half a pixel away from the square of the two separate steps.
    assert np.abs(pixels - expected).mean() < 3


def test_without_a_crop_the_whole_image_is_resized_to_a_square() -> None:
    image = Image.new("RGB", (100, 20), "black")
    image.paste("white", (0, 0, 50, 20))
    pixels = prepare(image, Preprocessing(40, None, MEAN, STD))
    assert pixels.shape == (40, 40, 3)
    assert pixels[:, :19].min() > 250 and pixels[:, 21:].max() < 5


SHAPES = [((500, 375), (224, 224)), ((60, 90), (224, 200)), ((1024, 768), (64, 48)), ((224, 224), (224, 224))]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "nearest"])
@pytest.mark.parametrize(("shape", "size"), SHAPES)
def test_whole_images_have_the_pixels_of_pillow(
    interpolation: str, shape: tuple[int, int], size: tuple[int, int]
) -> None:
    image = make_image(2, shape)
    expected = np.asarray(image.resize(size, Image.Resampling[interpolation.upper()])).astype(int)
    for source in (image, np.asarray(image)):
        found = resize(source, size, interpolation)
        assert found.dtype == np.uint8 and found.flags.c_contiguous
        assert np.abs(found - expected).max() <= 2 and np.abs(found - expected).mean() < 0.01


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("shape", "size"), SHAPES)
def test_boxes_have_the_pixels_of_pillow_but_for_a_fraction_of_a_pixel(
    interpolation: str, shape: tuple[int, int], size: tuple[int, int]
) -> None:
    """Checks that parts of an image in random boxes of at least two pixels are resized as by Pillow. An error of a
    whole pixel in the position would give a much larger mean difference."""
    image = make_image(4, shape)
    rng = np.random.default_rng(0)
    differences = []
    for _ in range(40):
        low, high = np.sort(rng.random((2, 2)), axis=0) * (np.array(shape) - 2)
        box = (*low.tolist(), *(high + 2).tolist())
        expected = np.asarray(image.resize(size, Image.Resampling[interpolation.upper()], box)).astype(int)
        found = resize(image, size, interpolation, box)
        assert found.shape == (*size[::-1], 3)
        assert np.array_equal(found, resize(np.asarray(image), size, interpolation, box))
        differences.append(np.abs(found - expected).mean())
    assert np.mean(differences) < 1 and max(differences) < 5


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("side", np.arange(58, 66, 0.25).tolist())
def test_each_pixel_of_a_resized_box_is_computed_at_its_position(interpolation: str, side: float) -> None:
    """Checks the positions at which pixels are computed. The grey level of each pixel of the image is its column or its
    row, so the expected level of a resized pixel is its position in the image."""
    image = np.repeat(np.tile(np.arange(256, dtype=np.uint8), (256, 1))[..., None], 3, axis=2)
    positions = 40.25 + (np.arange(64) + 0.5) * side / 64 - 0.5
    across = resize(image, (64, 64), interpolation, (40.25, 40.25, 40.25 + side, 40.25 + side))[..., 0]
    down = resize(image.transpose(1, 0, 2), (64, 64), interpolation, (40.25, 40.25, 40.25 + side, 40.25 + side))[..., 0]
    assert np.abs(across - positions).max() < 1 and np.abs(down.T - positions).max() < 1


def test_a_tiny_box_of_a_large_image_takes_little_memory() -> None:
    found = resize(make_image(5, (2000, 1500)), (64, 64), box=(1999.5, 700.25, 1999.50001, 700.26))
    assert found.shape == (64, 64, 3)

"""Tests of preprocessing: the right square in the right size, and messages about unusable photos."""

import numpy as np
import pytest
from pictures import MEAN, STD, make_image
from PIL import Image

from pipeline.images.preprocess import Preprocessing, prepare


@pytest.mark.parametrize("size", [(90, 60), (60, 90), (61, 64), (60, 60)])
def test_central_square_is_what_resizing_and_then_cropping_gives(size: tuple[int, int]) -> None:
    image = make_image(1, size)
    scale = 32 / min(size)
    whole = image.resize((round(size[0] * scale), round(size[1] * scale)), Image.Resampling.BILINEAR)
    left, top = ((side - 24) // 2 for side in whole.size)
    expected = np.asarray(whole.crop((left, top, left + 24, top + 24)), np.float32)
    pixels = prepare(image, Preprocessing(32, 24, MEAN, STD))
    assert pixels.shape == (24, 24, 3) and pixels.dtype == np.uint8
    # The position of the square may differ by up to half a pixel.
    assert np.abs(pixels - expected).mean() < 3


def test_without_a_crop_the_whole_image_is_squashed() -> None:
    image = Image.new("RGB", (100, 20), "black")
    image.paste("white", (0, 0, 50, 20))
    pixels = prepare(image, Preprocessing(40, None, MEAN, STD))
    assert pixels.shape == (40, 40, 3)
    assert pixels[:, :19].min() > 250 and pixels[:, 21:].max() < 5

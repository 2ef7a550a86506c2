"""The right square at the right size; what is wrong is named."""

import hashlib
import os
import re
import signal

import numpy as np
import pytest
from pictures import MEAN, STD, encode_jpeg, make_image
from PIL import Image

from pipeline.errors import InputError
from pipeline.images.decode import ImageLimits
from pipeline.images.preprocess import Photograph, Preprocessing, load_all, prepare, shared_map
from pipeline.workers import Failure, ahead, isolated_map

LIMITS = ImageLimits(max_pixels=10**6, min_side=8, max_aspect=20)


def photograph(name: str, data: bytes, shown: bytes | None = None) -> Photograph:
    return Photograph(name, hashlib.sha256(data).hexdigest(), (data if shown is None else shown,))


def read(data: bytes) -> bytes:
    return data


@pytest.mark.parametrize("size", [(90, 60), (60, 90), (61, 64), (60, 60)])
def test_central_square_is_what_resizing_and_then_cropping_gives(size: tuple[int, int]) -> None:
    image = make_image(1, size)
    scale = 32 / min(size)
    whole = image.resize((round(size[0] * scale), round(size[1] * scale)), Image.Resampling.BILINEAR)
    left, top = ((side - 24) // 2 for side in whole.size)
    expected = np.asarray(whole.crop((left, top, left + 24, top + 24)), np.float32)
    pixels = prepare(image, Preprocessing(32, 24, MEAN, STD))
    assert pixels.shape == (24, 24, 3) and pixels.dtype == np.uint8
    # Up to half a pixel of difference in where the square lies.
    assert np.abs(pixels - expected).mean() < 3


def test_without_a_crop_the_whole_image_is_squashed() -> None:
    image = Image.new("RGB", (100, 20), "black")
    image.paste("white", (0, 0, 50, 20))
    pixels = prepare(image, Preprocessing(40, None, MEAN, STD))
    assert pixels.shape == (40, 40, 3)
    assert pixels[:, :19].min() > 250 and pixels[:, 21:].max() < 5


def test_what_has_changed_since_ingest_is_named() -> None:
    data = encode_jpeg(make_image(0))
    fine, cut = photograph("fine.jpg", data), photograph("cut.jpg", data[:-50])
    other = photograph("other.jpg", data, encode_jpeg(make_image(1)))
    preprocessing = Preprocessing(16, 16, MEAN, STD)
    for bad, reason in ((cut, "cut.jpg: truncated"), (other, "other.jpg: changed")):
        pixels = load_all([fine, bad], read, LIMITS, preprocessing, 0)
        next(pixels)
        with pytest.raises(InputError, match=re.escape(reason) + ".*run ingest again"):
            next(pixels)


SHAPE = (3, 4, 3)


def paint(number: int) -> np.ndarray:
    if number % 7 == 3:
        raise ValueError(f"no {number}")
    return np.random.default_rng(number).integers(0, 256, SHAPE, dtype=np.uint8)


def paint_or_die(number: int) -> np.ndarray:
    if number == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return paint(number)


def same(found: list, expected: list) -> bool:
    return all(a == b if isinstance(b, Failure) else np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_results_are_those_of_pickles_in_their_order_though_slots_are_used_again_and_a_death_costs_its_item() -> None:
    numbers = range(3 * ahead(2) + 5)
    expected = list(isolated_map(paint, numbers, 0))
    assert len(numbers) > 20 and same(list(shared_map(paint, numbers, 0, SHAPE)), expected)
    expected[20] = Failure("its worker process died")
    found = list(shared_map(paint_or_die, numbers, 2, SHAPE))  # all kept: none is a view of a slot
    assert same(found, expected)

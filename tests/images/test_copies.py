"""Tests of near-duplicates: edited copies of a photo are found, and photos that only look alike are not."""

import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageOps
from scipy.ndimage import gaussian_filter

from pipeline.images.copies import MIN_COPY_CORRELATION, SIDE, grey, near_pairs, verify


def draw(seed: int) -> Image.Image:
    """Draw a photo of soft coloured blobs. In all photos, the brightness rises equally from top to bottom."""
    noise = np.random.default_rng(seed).standard_normal((160, 200, 3))
    blobs = sum(gaussian_filter(noise, (width, width, 0)) * width for width in (2, 5, 10))
    shade = np.linspace(-60, 60, 160)[:, None, None]
    return Image.fromarray(np.clip(128 + 40 * blobs + shade, 0, 255).astype(np.uint8))


def shrink(image: Image.Image) -> np.ndarray:
    return grey(np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)))


def encode_again(image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=50)
    return Image.open(buffer)


@pytest.mark.parametrize(
    "change",
    [encode_again, lambda image: image.resize((100, 80)), lambda image: image.crop((20, 3, 200, 147)), ImageOps.mirror,
     lambda image: encode_again(ImageOps.mirror(image.crop((0, 16, 180, 160))).resize((90, 90)))],
    ids=["quality 50", "half the size", "cropped", "mirrored", "all of it"],
)  # fmt: skip
def test_a_copy_and_its_original_are_matched_in_either_order(
    change: Callable[[Image.Image], Image.Image],
) -> None:
    thumbnails = {0: shrink(draw(0)), 1: shrink(change(draw(0))), 2: shrink(draw(1))}
    there, back, other = verify(np.array([[0, 1], [1, 0], [0, 2]]), thumbnails)
    assert min(there, back) > MIN_COPY_CORRELATION + 0.05 and other < MIN_COPY_CORRELATION - 0.2


def test_photos_of_one_colour_are_not_near_duplicates() -> None:
    plain = np.full((SIDE, SIDE), 100, np.float32)
    noisy = plain + np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32) / 4
    assert verify(np.array([[0, 1], [1, 1]]), {0: plain, 1: noisy}).max() < MIN_COPY_CORRELATION


@pytest.mark.parametrize("exact", [1000, 100], ids=["all with all", "by an index"])
def test_near_duplicates_are_found_exactly_and_by_an_index(exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.images.copies.MAX_EXACT_PHOTOS", exact)
    features = np.random.default_rng(0).standard_normal((600, 32), dtype=np.float32)
    features[500:510] = features[:10] + 0.1
    found = set(map(tuple, near_pairs(features).tolist()))
    assert {(i, 500 + i) for i in range(10)} <= found
    assert all(i < j for i, j in found)

"""The standard features: the invariances of each descriptor are tested, and pooling is compared with a plain loop."""

import numpy as np
import pytest
from pictures import make_pixels

pytest.importorskip("cv2")

import cv2

from pipeline.encoders.descriptors import GIST_CELLS, LOCAL, PatchGrid, gist, one_thread, rgb_histogram, vlad

SIDE = 48
GRID = PatchGrid(step=8, patch=16)


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    return make_pixels(10, SIDE)


def test_opencv_has_its_threads_again_after_descriptors_were_computed() -> None:
    before = cv2.getNumThreads()
    try:
        cv2.setNumThreads(2)
        with one_thread():
            assert cv2.getNumThreads() == 1
        assert cv2.getNumThreads() == 2
    finally:
        cv2.setNumThreads(before)


def test_vlad_equals_a_plain_loop() -> None:
    generator = np.random.default_rng(0)
    descriptors = generator.normal(size=(200, 7))
    words = generator.normal(size=(9, 7))
    expected = np.zeros((9, 7))
    for descriptor in descriptors:
        word = min(range(9), key=lambda w: ((descriptor - words[w]) ** 2).sum())
        expected[word] += descriptor - words[word]
    expected = np.sign(expected) * abs(expected) ** 0.5
    expected /= (expected**2).sum() ** 0.5
    pooled = vlad(descriptors.astype(np.float32), words.astype(np.float32))
    np.testing.assert_allclose(pooled, expected.ravel(), rtol=1e-3, atol=1e-4)
    backwards = vlad(descriptors[::-1].astype(np.float32), words.astype(np.float32))
    np.testing.assert_allclose(backwards, pooled, rtol=1e-3, atol=1e-4)


def test_colour_features_do_not_depend_on_positions(pixels: np.ndarray) -> None:
    histogram = rgb_histogram(pixels[0])
    assert histogram.shape == (512,) and np.linalg.norm(histogram) == pytest.approx(1)
    for moved in (pixels[0][:, ::-1], pixels[0][::-1], pixels[0].transpose(1, 0, 2)):
        assert np.array_equal(rgb_histogram(np.ascontiguousarray(moved)), histogram)
    assert not np.allclose(rgb_histogram(pixels[1]), histogram)


@pytest.mark.parametrize(("across", "direction"), [((1, 0), 0), ((1, 1), 2), ((0, 1), 4)])
def test_gist_depends_on_the_direction_of_stripes(across: tuple[int, int], direction: int) -> None:
    y, x = np.mgrid[:128, :128]
    phase = 2 * np.pi / 5 * (across[0] * x + across[1] * y) / np.hypot(*across)
    stripes = np.repeat((127.5 + 100 * np.sin(phase)).astype(np.uint8)[..., None], 3, axis=2)
    energies = gist(stripes)
    assert energies.shape == (960,)
    octave = energies[: 8 * GIST_CELLS**2 * 3].reshape(8, -1).mean(axis=1)
    assert octave.argmax() == direction and octave[direction] > 3 * octave[(direction + 4) % 8]


def test_gist_of_a_mirror_image_is_mirrored() -> None:
    picture = make_pixels(1, 128)[0]
    octaves = [gist(np.ascontiguousarray(p)) for p in (picture, picture[:, ::-1])]
    plain, mirrored = (o[: 8 * GIST_CELLS**2 * 3].reshape(8, GIST_CELLS, GIST_CELLS, 3) for o in octaves)
    turned = plain[[0, 7, 6, 5, 4, 3, 2, 1]][:, :, ::-1]
    np.testing.assert_allclose(mirrored, turned, rtol=1e-3, atol=1e-5)
    assert not np.allclose(mirrored, plain, rtol=1e-2)


@pytest.mark.parametrize("kind", LOCAL)
def test_a_shifted_image_has_shifted_descriptors(kind: str) -> None:
    wide = make_pixels(1, 120)[0]
    size = 112
    here, there = (
        LOCAL[kind](np.ascontiguousarray(wide[:size, left : left + size]), GRID).reshape(13, 13, -1) for left in (0, 8)
    )
    assert here.shape[2] == {"csift": 384, "rgbsift": 384, "hog": 36}[kind]
    inner = slice(2, 11)  # From these rows of grid points, no filter extends beyond the edge of the image.
    shifted = here[inner, 3:12].ravel()
    same = there[inner, 2:11].ravel()
    assert shifted @ same > 0.999 * np.linalg.norm(shifted) * np.linalg.norm(same)
    assert here[inner, 2:11].ravel() @ same < 0.99 * np.linalg.norm(shifted) * np.linalg.norm(same)

"""Standard visual features: each descriptor by what must not change it, the pooling against a plain loop."""

import json

import numpy as np
import pytest
import torch
from pictures import MEAN, STD, make_pixels

pytest.importorskip("cv2")

from pipeline.config.registry.stored import restore_encoder
from pipeline.images.descriptors import GIST_CELLS, LOCAL, PatchGrid, colour_sift, gist, hog, rgb_histogram, rgb_sift
from pipeline.images.pooling import DescriptorSampler, StandardDescriber, vlad
from pipeline.images.preprocess import Preprocessing
from pipeline.images.standard import StandardEncoder, StandardSpec, learn_codebooks, learn_projection

SIDE, GRID = 48, PatchGrid(step=8, patch=16)
DIMS = {"gist": 6, "rgb": 5, "csift": 4, "rgbsift": 3, "hog": 7}
N_POINTS = 25


def learn(pixels: np.ndarray, dims: dict = DIMS, flip: bool = False, seed: int = 0) -> StandardEncoder:
    codebooks = learn_codebooks([DescriptorSampler(GRID, 12, seed)(p) for p in pixels], words=8, dim=10, seed=seed)
    described = [StandardDescriber(GRID, flip, codebooks).parts(p) for p in pixels]
    spec = StandardSpec(Preprocessing(SIDE, None, MEAN, STD), GRID, flip)
    return StandardEncoder(spec, codebooks, learn_projection(described, dims, seed), {"origin": "learned"})


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    return make_pixels(10, SIDE)


@pytest.fixture(scope="module")
def encoder(pixels: np.ndarray) -> StandardEncoder:
    return learn(pixels)


def test_vlad_is_that_of_the_plain_loop() -> None:
    generator = np.random.default_rng(0)
    descriptors, words = generator.normal(size=(200, 7)), generator.normal(size=(9, 7))
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


def test_vlad_of_the_words_themselves_is_zero() -> None:
    words = np.eye(4, dtype=np.float32)
    assert not vlad(words[[0, 2, 2]], words).any()


def test_colours_do_not_depend_on_where_they_are(pixels: np.ndarray) -> None:
    histogram = rgb_histogram(pixels[0])
    assert histogram.shape == (512,) and np.linalg.norm(histogram) == pytest.approx(1)
    for moved in (pixels[0][:, ::-1], pixels[0][::-1], pixels[0].transpose(1, 0, 2)):
        assert np.array_equal(rgb_histogram(np.ascontiguousarray(moved)), histogram)
    assert not np.allclose(rgb_histogram(pixels[1]), histogram)


def test_a_bin_holds_32_values_of_each_channel() -> None:
    colour = np.full((4, 4, 3), (31, 32, 255), np.uint8)
    assert rgb_histogram(colour)[0 * 64 + 1 * 8 + 7] == 1


@pytest.mark.parametrize(("across", "direction"), [((1, 0), 0), ((1, 1), 2), ((0, 1), 4)])
def test_gist_knows_the_direction_of_stripes(across: tuple[int, int], direction: int) -> None:
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


def test_a_flat_picture_has_no_gist() -> None:
    np.testing.assert_allclose(gist(np.full((50, 50, 3), 93, np.uint8)), 0, atol=1e-5)


@pytest.mark.parametrize("kind", LOCAL)
def test_a_shifted_picture_has_shifted_descriptors(kind: str) -> None:
    wide, size = make_pixels(1, 120)[0], 112
    here, there = (
        LOCAL[kind](np.ascontiguousarray(wide[:size, left : left + size]), GRID).reshape(13, 13, -1) for left in (0, 8)
    )
    assert here.shape[2] == {"csift": 384, "rgbsift": 384, "hog": 36}[kind]
    inner = slice(2, 11)  # further in than filters reach over the edge
    shifted, same = here[inner, 3:12].ravel(), there[inner, 2:11].ravel()
    assert shifted @ same > 0.999 * np.linalg.norm(shifted) * np.linalg.norm(same)
    assert here[inner, 2:11].ravel() @ same < 0.99 * np.linalg.norm(shifted) * np.linalg.norm(same)


def test_grey_pictures_have_no_colour(pixels: np.ndarray) -> None:
    grey = np.repeat(pixels[0][..., :1], 3, axis=2)
    red, green, blue = np.split(rgb_sift(grey, GRID), 3, axis=1)
    intensity, *opponents = np.split(colour_sift(grey, GRID), 3, axis=1)
    assert red.shape == (N_POINTS, 128) and red.any()
    assert np.array_equal(red, green) and np.array_equal(red, blue) and np.array_equal(red, intensity)
    assert not np.any(opponents)


def test_shade_changes_the_opponent_colours_little() -> None:
    picture = make_pixels(1, 112)[0] // 2 * 2
    bright, dark = (colour_sift(p, GRID)[:, 128:] for p in (picture, picture // 2))
    assert (bright * dark).sum() > 0.95 * np.linalg.norm(bright) * np.linalg.norm(dark)


def test_samples_are_drawn_by_the_seed(pixels: np.ndarray) -> None:
    first, again, other = (DescriptorSampler(GRID, 5, seed)(pixels[0]) for seed in (0, 0, 1))
    everything = hog(pixels[0], GRID)
    for kind in LOCAL:
        assert len(first[kind]) == 5 and np.array_equal(first[kind], again[kind])
    assert not np.array_equal(first["hog"], other["hog"])
    assert all((everything == row).all(axis=1).any() for row in first["hog"])


def test_parts_have_the_dimensions_asked_for(encoder: StandardEncoder, pixels: np.ndarray) -> None:
    assert encoder.dim == sum(DIMS.values())
    features = encoder(torch.from_numpy(pixels)).numpy()
    assert features.dtype == np.float32
    for part in np.split(features, np.cumsum(list(DIMS.values()))[:-1], axis=1):
        covariance = np.cov(part.T)
        variances = np.diag(covariance)
        np.testing.assert_allclose(covariance, np.diag(variances), atol=1e-5)
        assert (np.diff(variances) <= 1e-6).all() and 0.2 < variances.sum() <= 1 + 1e-4


def test_all_directions_keep_all_distances(pixels: np.ndarray) -> None:
    whole = learn(pixels, dict.fromkeys(DIMS, 10**6))
    described = [whole.describer.parts(p) for p in pixels]
    features = np.split(whole(torch.from_numpy(pixels)).numpy(), len(DIMS), axis=1)
    for part, name in zip(features, DIMS, strict=True):
        raw = np.stack([d[name] for d in described]).astype(np.float64)
        scale = np.sqrt(raw.var(axis=0, ddof=1).sum())
        expected = np.linalg.norm(raw[0] - raw[1:], axis=1) / scale
        np.testing.assert_allclose(np.linalg.norm(part[0] - part[1:], axis=1), expected, rtol=1e-3)


def test_more_dimensions_than_pictures_are_reduced_and_said(pixels: np.ndarray, caplog) -> None:
    assert learn(pixels[:5], {**DIMS, "gist": 500}).dim == 4 + 4 + 4 + 3 + 4
    assert "dimensions from 5 images: gist 4 instead of 500, rgb 4 instead of 5" in caplog.text


def test_the_same_seed_learns_the_same(encoder: StandardEncoder, pixels: np.ndarray) -> None:
    again, other = learn(pixels).tensors(), learn(pixels, seed=1).tensors()
    for name, tensor in encoder.tensors().items():
        assert np.array_equal(tensor, again[name]), name
    assert not np.array_equal(other["hog.codebook.words"], again["hog.codebook.words"])


def test_an_encoder_is_rebuilt_from_its_parts(encoder: StandardEncoder, pixels: np.ndarray) -> None:
    settings = json.loads(json.dumps(encoder.settings()))
    again = restore_encoder(settings, encoder.tensors())
    assert isinstance(again, StandardEncoder) and again.spec == encoder.spec and again.settings() == encoder.settings()
    images = torch.from_numpy(pixels)
    assert torch.equal(again(images), encoder(images))


def test_divided_work_makes_the_same_features(encoder: StandardEncoder, pixels: np.ndarray) -> None:
    work = encoder.work("cpu", "bfloat16", batch_size=4)
    assert work.extractor.plan.precision == "float32"
    blocks = list(work.extractor(work.describe(p) for p in pixels))
    assert [len(block) for block in blocks] == [4, 4, 2]
    np.testing.assert_allclose(np.concatenate(blocks), encoder(torch.from_numpy(pixels)), rtol=1e-4, atol=1e-5)


def test_mirror_images_are_one_with_flip(pixels: np.ndarray) -> None:
    images = torch.from_numpy(pixels[:4])
    both, one = learn(pixels[:4], flip=True), learn(pixels[:4])
    torch.testing.assert_close(both(images.flip(2)), both(images), rtol=1e-4, atol=1e-5)
    assert (one(images.flip(2)) - one(images)).abs().max() > 0.05


@pytest.mark.parametrize("value", [0, 255])
def test_empty_pictures_have_finite_features(encoder: StandardEncoder, value: int) -> None:
    features = encoder(torch.full((1, SIDE, SIDE, 3), value, dtype=torch.uint8))
    assert torch.isfinite(features).all() and features.any()

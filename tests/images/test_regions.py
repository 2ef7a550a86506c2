"""Tests of features of regions: warping to crops, pooling from activation maps, batches, and unusable images."""

import numpy as np
import pytest
import torch
from pictures import MEAN, make_encoder, make_image
from PIL import Image
from torchvision.ops import roi_align

from pipeline.encoders.preparation import Crops
from pipeline.encoders.regions import Classifier, pool_regions, region_encoder
from pipeline.images.boxes import Candidates


def test_a_crop_is_the_box_with_its_context() -> None:
    image = make_image(3, (200, 160))
    crop = Crops(64, 8, MEAN).warp(image, np.array([50, 40, 98, 88.0]))
    # The box has 48 x 48 pixels, and so has its place in the crop of 64 x 64 pixels. The border of 8 pixels is context.
    assert np.array_equal(crop, np.asarray(image.crop((42, 32, 106, 96))))
    corner = Crops(64, 8, MEAN).warp(image, np.array([0, 0, 48, 48.0]))
    assert np.array_equal(corner[8:, 8:], np.asarray(image.crop((0, 0, 56, 56))))
    assert (corner[:8] == np.rint(np.multiply(MEAN, 255))).all() and (corner[:, :8] == corner[0, 0]).all()
    tight = Crops(32, 0, MEAN).warp(image, np.array([10, 20, 90, 120.0]))
    plain = image.resize((32, 32), Image.Resampling.BILINEAR, (10, 20, 90, 120))
    # Pixels around the box reach the outermost pixels of Pillow's result.
    assert np.abs(tight[1:-1, 1:-1].astype(int) - np.asarray(plain)[1:-1, 1:-1]).max() <= 1


def test_pooling_is_the_limit_of_roi_align() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(2, 5, 9, 13, generator=generator)
    corners = torch.rand(2, 6, 2, 2, generator=generator).sort(dim=2).values
    boxes = corners.flatten(2)
    boxes[0, 0] = torch.tensor([0.0, 0.0, 1.0, 1.0])
    scale = torch.tensor([13.0, 9.0, 13.0, 9.0])
    expected = roi_align(maps, list(boxes * scale), 1, 1.0, sampling_ratio=200, aligned=True)
    torch.testing.assert_close(pool_regions(maps, boxes).flatten(0, 1), expected[..., 0, 0], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("architecture", ["squeezenet1_1", "mobilenet_v3_small"])
def test_a_region_of_the_whole_image_has_the_features_of_the_image(architecture: str) -> None:
    encoder = make_encoder(architecture, side=64)
    pixels = torch.from_numpy(np.stack([np.asarray(make_image(s, (64, 64))) for s in range(2)]))
    boxes = torch.tensor([[[0.0, 0, 1, 1], [0.2, 0.1, 0.7, 0.9]]]).expand(2, -1, -1)
    with torch.inference_mode():
        whole = encoder(pixels)
        regions = region_encoder(encoder)(pixels, boxes)
        fast = region_encoder(encoder).optimised(torch.device("cpu"), torch.float32)(pixels, boxes)
    assert regions.shape == (2, 2, whole.shape[1])
    assert relative(regions[:, 0], whole).max() < 1e-3
    assert relative(regions[:, 1], whole).min() > 0.02
    assert relative(fast, regions).max() < 1e-3


def relative(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return (found - expected).norm(dim=-1) / expected.norm(dim=-1)


def test_a_classifier_keeps_the_regions_with_the_highest_probabilities() -> None:
    boxes = np.float32([[0, 0, 90, 70], [0, 0, 20, 20], [0, 0, 20, 19], [40, 40, 60, 60], [60, 0, 80, 20]])
    regions = Candidates(boxes, np.float32([1, 0.9, 0.8, 0.7, 0.6]))
    features = np.float32([[0, 0], [1, 0], [3, 0], [0, 4], [0, 0.1]])
    classifier = Classifier(np.float32([[0, 0], [1, 0], [0, 1]]), np.float32([0.5, 0, 0]), 0.5, 3)
    chosen, rows = classifier.keep_best(regions, features)
    assert np.array_equal(rows, features[[0, 3, 2, 4]]) and np.array_equal(chosen.boxes, boxes[[0, 3, 2, 4]])
    exponents = np.exp(features @ classifier.weight.T + classifier.bias)
    expected = (exponents / exponents.sum(axis=1, keepdims=True))[:, 1:].max(axis=1)
    np.testing.assert_allclose(chosen.scores, [1, *expected[[3, 2, 4]]], rtol=1e-5)

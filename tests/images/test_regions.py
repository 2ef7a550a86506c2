"""Regions to features: warping, maps, batches, and images that cannot be used."""

from functools import partial

import numpy as np
import pytest
import torch
from pictures import MEAN, encode_jpeg, make_encoder, make_image, normalise
from PIL import Image
from torchvision.ops import roi_align

from pipeline.images.boxes import Candidates, Selection
from pipeline.images.extraction import ExtractionPlan
from pipeline.images.networks import NetworkEncoder
from pipeline.images.opening import ImageLimits
from pipeline.images.preparation import Crops, Cutting, Preparation, Request, WholeImages
from pipeline.images.preprocess import Photograph, PhotographReader
from pipeline.images.regions import (
    Classifier,
    DescribedRegions,
    RegionExtractor,
    describe,
    pool_regions,
    region_encoder,
)
from pipeline.workers import isolated_map

SELECTION = Selection(iou=0.7, count=4, fill=True)
SIZES = [(90, 70), (70, 90), (64, 64), (90, 70), (200, 30), (1, 1), (90, 70), (3, 300)]
VIEWS = {"crops": Crops(64, 8, MEAN), "roi-align": WholeImages(96, 32, 2.5)}


def make_requests(sizes: list = SIZES) -> tuple[dict, list[Request]]:
    """Encoded images by name, and requests with as many known boxes as the image's number, up to 3."""
    import hashlib

    files, requests = {}, []
    for number, size in enumerate(sizes):
        data = encode_jpeg(make_image(number, size))
        files[f"{number}.jpg"] = data
        corners = np.random.default_rng(number).random((min(number, 3), 2, 2)) * size
        boxes = np.hstack([corners.min(1), corners.max(1)]).astype(np.float32)
        known = Candidates(boxes, np.linspace(1, 0.5, len(boxes), dtype=np.float32))
        photograph = Photograph(f"{number}.jpg", hashlib.sha256(data).hexdigest(), (f"{number}.jpg",))
        requests.append(Request(photograph, known))
    return files, requests


def make_preparation(files: dict, view: Crops | WholeImages) -> Preparation:
    reader = PhotographReader(partial(_read, files), ImageLimits(1 << 20, 1, 1 << 20))
    return Preparation(reader, Cutting(False, SELECTION, view))


def _read(files: dict, name: str) -> bytes:
    return files[name]


def run(
    encoder: NetworkEncoder,
    view: Crops | WholeImages,
    requests: list[Request],
    files: dict,
    batch: int = 5,
) -> DescribedRegions:
    plan = ExtractionPlan(torch.device("cpu"), torch.float32, batch)
    images = isolated_map(make_preparation(files, view), requests, 0)
    return describe(images, RegionExtractor(encoder, plan, view))


def test_a_crop_is_the_box_with_its_context() -> None:
    image = make_image(3, (200, 160))
    crop = Crops(64, 8, MEAN).warp(image, np.array([50, 40, 98, 88.0]))
    # The box is 48 pixels wide and becomes 48 of 64: one to one, with 8 around.
    assert np.array_equal(crop, np.asarray(image.crop((42, 32, 106, 96))))
    corner = Crops(64, 8, MEAN).warp(image, np.array([0, 0, 48, 48.0]))
    assert np.array_equal(corner[8:, 8:], np.asarray(image.crop((0, 0, 56, 56))))
    assert (corner[:8] == np.rint(np.multiply(MEAN, 255))).all() and (corner[:, :8] == corner[0, 0]).all()
    tight = Crops(32, 0, MEAN).warp(image, np.array([10, 20, 90, 120.0]))
    plain = image.resize((32, 32), Image.Resampling.BILINEAR, (10, 20, 90, 120))
    assert np.array_equal(tight, np.asarray(plain))


@pytest.mark.parametrize("bins", [1, 2, 7])
def test_pooling_is_the_limit_of_roi_align(bins: int) -> None:
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(2, 5, 9, 13, generator=generator)
    corners = torch.rand(2, 6, 2, 2, generator=generator).sort(dim=2).values
    boxes = corners.flatten(2)
    boxes[0, 0] = torch.tensor([0.0, 0.0, 1.0, 1.0])
    scale = torch.tensor([13.0, 9.0, 13.0, 9.0])
    expected = roi_align(maps, list(boxes * scale), bins, 1.0, sampling_ratio=200, aligned=True)
    found = pool_regions(maps, boxes, bins).flatten(0, 1)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("architecture", "layer", "side"),
    [
        ("squeezenet1_1", "average", 64),
        ("mobilenet_v3_small", "average", 64),
        ("alexnet", "fc7", 96),
    ],
)
def test_the_whole_image_as_a_region_is_the_whole_image(architecture: str, layer: str, side: int) -> None:
    encoder = make_encoder(architecture, layer=layer, side=side)
    pixels = torch.from_numpy(np.stack([np.asarray(make_image(s, (side, side))) for s in range(2)]))
    boxes = torch.tensor([[[0.0, 0, 1, 1], [0.2, 0.1, 0.7, 0.9]]]).expand(2, -1, -1)
    with torch.inference_mode():
        whole, regions = encoder(pixels), region_encoder(encoder)(pixels, boxes)
        fast = region_encoder(encoder).optimised(torch.device("cpu"), torch.float32)(pixels, boxes)
    assert regions.shape == (2, 2, whole.shape[1])
    # The mean over one bin is that over all cells; the finer bins of fc layers are sampled between the cells.
    assert relative(regions[:, 0], whole).max() < (1e-3 if layer == "average" else 0.2)
    assert relative(regions[:, 1], whole).min() > 0.02
    assert relative(fast, regions).max() < 1e-3


def relative(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return (found - expected).norm(dim=-1) / expected.norm(dim=-1)


def test_crops_are_those_of_the_plain_loop() -> None:
    files, requests = make_requests()
    encoder = make_encoder()
    described = run(encoder, VIEWS["crops"], requests, files)
    features = []
    for place, request in enumerate(requests):
        image = Image.open(__import__("io").BytesIO(files[request.photograph.name])).convert("RGB")
        rows = slice(described.lengths[:place].sum(), described.lengths[: place + 1].sum())
        assert described.boxes[rows][0].tolist() == [0, 0, *image.size]
        for box in described.boxes[rows]:
            whole = (box == (0, 0, *image.size)).all()
            crop = image.resize((64, 64), Image.Resampling.BILINEAR) if whole else VIEWS["crops"].warp(image, box)
            with torch.inference_mode():
                features.append(encoder.body(normalise(np.asarray(crop)[None])).mean((2, 3)).numpy())
    np.testing.assert_allclose(described.features, np.concatenate(features), rtol=1e-3, atol=1e-4)


def test_a_classifier_chooses_as_its_probabilities_say() -> None:
    boxes = np.float32([[0, 0, 90, 70], [0, 0, 20, 20], [0, 0, 20, 19], [40, 40, 60, 60], [60, 0, 80, 20]])
    regions = Candidates(boxes, np.float32([1, 0.9, 0.8, 0.7, 0.6]))
    features = np.float32([[0, 0], [1, 0], [3, 0], [0, 4], [0, 0.1]])
    classifier = Classifier(np.float32([[0, 0], [1, 0], [0, 1]]), np.float32([0.5, 0, 0]), 0.5, 3)
    chosen, rows = classifier.keep_best(regions, features)
    assert np.array_equal(rows, features[[0, 3, 2, 4]]) and np.array_equal(chosen.boxes, boxes[[0, 3, 2, 4]])
    exponents = np.exp(features @ classifier.weight.T + classifier.bias)
    expected = (exponents / exponents.sum(axis=1, keepdims=True))[:, 1:].max(axis=1)
    np.testing.assert_allclose(chosen.scores, [1, *expected[[3, 2, 4]]], rtol=1e-5)

"""Tests that regions and proposals on a GPU equal the results on the CPU, and that extraction and exact search on a GPU
give the same results if its memory is full."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from pictures import make_encoder, make_image, make_pixels
from torchvision.models import get_model

from pipeline.encoders.detectors import build_detector, detect
from pipeline.encoders.extraction import ExtractionPlan, Extractor
from pipeline.encoders.preparation import PreparedImage, WholeImages
from pipeline.encoders.regions import RegionExtractor
from pipeline.images.boxes import Candidates
from pipeline.index.exact import search_exact

CPU = torch.device("cpu")
DETECTOR = "fasterrcnn_mobilenet_v3_large_320_fpn"


def difference(work: Callable[[torch.device], np.ndarray], device: torch.device) -> float:
    """Return the norm of the difference between the results of `work` on the device and on the CPU, divided by the norm
    of the result on the CPU."""
    found = work(device)
    expected = work(CPU)
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def test_features_of_regions_equal_those_of_the_cpu(other_device: torch.device) -> None:
    encoder = make_encoder("squeezenet1_1", side=64)
    view = WholeImages(64, 32, 2.0)
    corners = np.sort(np.random.default_rng(0).random((6, 2, 2), dtype=np.float32), axis=1).reshape(-1, 4)
    boxes = Candidates(corners * np.float32([200, 160, 200, 160]), np.ones(6, np.float32))
    picture = view.render(make_image(3, (200, 160)), boxes.boxes)

    def regions(device: torch.device) -> np.ndarray:
        extractor = RegionExtractor(encoder, ExtractionPlan(device, torch.float32, 8), view)
        return np.concatenate(extractor([PreparedImage(boxes, picture, (200, 160), Counter())] * 4))

    assert difference(regions, other_device) < 1e-4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_scores_of_proposals_equal_those_of_the_cpu() -> None:
    state = get_model(DETECTOR, weights=None, weights_backbone=None).state_dict()
    images = [np.asarray(make_image(seed, (320, 240))) for seed in range(2)]

    def scores(device: torch.device) -> np.ndarray:
        network = build_detector(DETECTOR, state, DETECTOR)
        return np.stack([each.scores[:20] for each in detect(network, images, device, "rpn", 2)])

    assert difference(scores, torch.device("cuda")) < 1e-3


@contextmanager
def little_memory(gib: float) -> Iterator[None]:
    """Limit the GPU memory that torch may use in this process to `gib` GiB while the `with` block runs."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties("cuda").total_memory
    torch.cuda.set_per_process_memory_fraction(gib * 2**30 / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_extraction_halves_its_batch_when_the_memory_of_a_gpu_is_full() -> None:
    extractor = Extractor(make_encoder("resnet18", side=224), ExtractionPlan(torch.device("cuda"), torch.float32, 1024))
    pixels = np.resize(make_pixels(16, 224), (1024, 224, 224, 3))
    expected = extractor(pixels)
    with little_memory(1.0):
        assert np.allclose(extractor(pixels), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    assert extractor.plan.batch_size < 1024


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_exact_search_goes_on_when_the_memory_of_a_gpu_is_full() -> None:
    vectors = np.random.default_rng(0).standard_normal((1 << 16, 512), dtype=np.float32)

    def search() -> np.ndarray:
        return search_exact(vectors[:1024], [vectors], 10, "inner_product", torch.device("cuda")).scores

    expected = search()
    with little_memory(0.3):
        assert np.allclose(search(), expected, rtol=1e-5)

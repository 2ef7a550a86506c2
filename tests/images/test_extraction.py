"""Tests that extraction gives the same features in any batch size and precision, and on a full GPU."""

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fake_devices import full_beyond
from pictures import make_encoder, make_pixels

from pipeline.compute.device import OomBatcher
from pipeline.encoders.extraction import ExtractionPlan, Extractor, choose_plan, extract_in_step
from pipeline.encoders.networks import NetworkEncoder

CPU = torch.device("cpu")


def run(encoder: NetworkEncoder, pixels: np.ndarray, batch_size: int, dtype: torch.dtype = torch.float32) -> np.ndarray:
    return Extractor(encoder, ExtractionPlan(CPU, dtype, batch_size))(pixels)


def test_flipping_averages_over_the_mirror_image() -> None:
    pixels = make_pixels(2)
    both = run(make_encoder(), pixels, 2) + run(make_encoder(), pixels[:, :, ::-1].copy(), 2)
    np.testing.assert_allclose(run(make_encoder(flip=True), pixels, 2), both / 2, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_features_do_not_depend_on_the_batch_size(dtype: torch.dtype, tolerance: float) -> None:
    encoder = make_encoder("mobilenet_v3_small")
    pixels = make_pixels(5)
    alone = run(encoder, pixels, 1, dtype)
    scale = np.abs(alone).max()
    for size in (2, 32):
        assert np.abs(run(encoder, pixels, size, dtype) - alone).max() <= tolerance * scale


class MeanColourExtractor:
    """Test double of Extractor with batches of `size` images. Its features are the mean colours of the images, and
    `batches` has the number of images in each batch."""

    def __init__(self, size: int) -> None:
        self.plan = ExtractionPlan(CPU, torch.float32, size)
        self.batches: list[int] = []

    def start(self, pixels: torch.Tensor) -> torch.Tensor:
        self.batches.append(len(pixels))
        return pixels.float().mean(dim=(1, 2))


@pytest.mark.parametrize("sizes", [(2, 2), (1, 50), (4, 3)])
def test_encoders_that_share_images_give_the_features_of_separate_runs_and_keep_few_images(
    sizes: tuple[int, int],
) -> None:
    lengths = [100, 90, 10, 200]
    alive = []
    most = 0
    pixels = np.random.default_rng(0).integers(0, 256, (2, sum(lengths), 4, 4, 3), dtype=np.uint8)

    def views() -> Iterator[list[np.ndarray]]:
        nonlocal most
        for number in range(sum(lengths)):
            copies = list(pixels[:, number].copy())
            alive.append(weakref.ref(copies[0]))
            most = max(most, sum(one() is not None for one in alive))
            yield copies

    extractors = [MeanColourExtractor(size) for size in sizes]
    found = list(extract_in_step(views(), extractors, lengths))
    assert [[len(rows) for rows in turn] for turn in found] == [[length, length] for length in lengths]
    np.testing.assert_allclose(np.concatenate(found, axis=1), pixels.mean(axis=(2, 3)), rtol=1e-6)
    assert most <= 2 + sizes[0], "more images were in memory than wait in a batch"
    for extractor, size in zip(extractors, sizes, strict=True):
        full = [[size] * (length // size) + [length % size] * (length % size > 0) for length in lengths]
        assert extractor.batches == sum(full, []), "a batch had images of two rounds"


def test_images_are_copied_once_into_pinned_batches_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that batches for a GPU are allocated in pinned memory, with one row per image. Pinned memory needs a GPU,
    so the test records the requests for it and uses other memory."""
    allocate = torch.empty
    requested = []

    def record(shape: tuple[int, ...], pin_memory: bool, **options: Any) -> torch.Tensor:
        requested.append((shape, pin_memory))
        return allocate(shape, **options)

    pixels = np.random.default_rng(0).integers(0, 256, (13, 8, 8, 3), dtype=np.uint8)
    for device, is_pinned in (("cpu", False), ("cuda", True)):
        extractor = MeanColourExtractor(4)
        extractor.plan = replace(extractor.plan, device=torch.device(device))
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", record)
            found = list(extract_in_step(([image] for image in pixels), [extractor], [10, 3]))
        np.testing.assert_allclose(np.concatenate([rows for (rows,) in found]), pixels.mean(axis=(1, 2)), rtol=1e-6)
        assert [(shape[0], pinned) for shape, pinned in requested] == [(rows, is_pinned) for rows in (4, 4, 4, 3)]
        assert {shape[1:] for shape, _ in requested} == {(8, 8, 3)}
        requested.clear()


def test_extraction_on_a_full_gpu_continues_with_half_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    extractor = Extractor(make_encoder(), ExtractionPlan(CPU, torch.float32, 8))
    pixels = make_pixels(11)
    done = []
    expected = run(make_encoder(), pixels, 8)
    monkeypatch.setattr(OomBatcher, "map", full_beyond(2, done))
    np.testing.assert_allclose(extractor(pixels), expected, rtol=1e-5, atol=1e-5)
    assert (max(done), sum(done), extractor.plan.batch_size) == (2, 11, 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_a_gpu_gives_the_same_features() -> None:
    encoder = make_encoder()
    pixels = make_pixels(9)
    expected = run(encoder, pixels, 4)
    for precision in ("float32", "auto"):
        extractor = Extractor(encoder, choose_plan(encoder, "cuda", precision, 4))
        features = extractor(pixels)
        cosine = (features * expected).sum(1) / np.linalg.norm(features, axis=1) / np.linalg.norm(expected, axis=1)
        assert cosine.min() > 0.999

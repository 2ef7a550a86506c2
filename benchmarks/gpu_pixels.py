"""The parts of gpu.py that see pixels: extraction from memory and from JPEGs, and regions by roi-align."""

import argparse
import hashlib
import io
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from interleave import compare
from PIL import Image

from pipeline.device import full_float32, upload
from pipeline.images.boxes import Candidates
from pipeline.images.decode import ImageLimits
from pipeline.images.extraction import Extractor, choose_plan, make_probes
from pipeline.images.networks import NetworkEncoder, NetworkSpec, untrained
from pipeline.images.preparation import PreparedImage, WholeImages
from pipeline.images.preprocess import Photograph, Preprocessing, load_all
from pipeline.images.regions import RegionExtractor, region_encoder

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LIMITS = ImageLimits(max_pixels=64_000_000, min_side=8, max_aspect=20)
PHOTOGRAPH, UNIQUE, REGIONS = (500, 375), 64, 19
"""Pixels of a JPEG, how many differ, and regions of an image beside the whole."""


def finished(work: Callable[[], Any], device: torch.device) -> Callable[[], None]:
    """`work`, and the wait until the device has done it."""

    def run() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def make_encoder(architecture: str) -> NetworkEncoder:
    return untrained(NetworkSpec(architecture, "average", Preprocessing(224, None, MEAN, STD), flip=False), seed=0)


class Forward:
    """The bare forward pass of a network on a batch that lies on the device, as often as the images fill one."""

    def __init__(self, encoder: NetworkEncoder, device: torch.device, options: argparse.Namespace) -> None:
        self.plan = choose_plan(encoder, str(device), "auto", options.batch)
        self._bare, self._times = encoder.optimised(device, self.plan.dtype), range(0, options.images, options.batch)
        some = np.random.default_rng(0).integers(0, 256, (options.batch, 224, 224, 3), dtype=np.uint8)
        with torch.inference_mode():
            self._ready = self._bare.normalise(upload(some, device))

    def __call__(self) -> None:
        with torch.inference_mode(), full_float32():
            for _ in self._times:
                self._bare.body(self._ready)


def extraction(architecture: str, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    encoder = make_encoder(architecture)
    forward = Forward(encoder, device, options)
    extractor = Extractor(encoder, forward.plan)
    few = list(np.random.default_rng(0).integers(0, 256, (options.batch, 224, 224, 3), dtype=np.uint8))
    pixels = [few[i % len(few)] for i in range(options.images)]
    ours, reference = (finished(work, device) for work in (lambda: list(extractor(pixels)), forward))
    result = compare(f"{architecture} extraction over the bare forward pass", ours, reference, options.pairs)
    rate = {"images_per_s": options.images / result["ours"], "precision": forward.plan.precision}
    return {**result, **rate, "batch": options.batch}


def from_jpegs(architecture: str, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """As `extract` does it: photographs decoded by other processes, on their way to the network."""
    encoder = make_encoder(architecture)
    forward = Forward(encoder, device, options)
    extractor = Extractor(encoder, forward.plan)
    with photographs() as unique:
        todo = [unique[i % len(unique)] for i in range(options.images)]

        def decoded() -> Iterator[np.ndarray]:
            return load_all(todo, Path.read_bytes, LIMITS, encoder.preprocessing, options.decoders)

        ours, reference = (finished(work, device) for work in (lambda: list(extractor(decoded())), forward))
        result = compare(
            f"{architecture} extraction from JPEGs over the bare forward pass", ours, reference, options.pairs
        )
        start = time.perf_counter()
        for _ in decoded():
            pass
        decoding = time.perf_counter() - start
    rates = {"images_per_s": options.images / result["ours"], "decoded_per_s": options.images / decoding}
    limit = f"{options.decoders} decoders" if decoding > result["reference"] else "the network"
    return {**result, **rates, "decoders": options.decoders, "limited_by": limit}


@contextmanager
def photographs() -> Iterator[list[Photograph]]:
    """JPEG files of PHOTOGRAPH's size."""
    rng, found = np.random.default_rng(0), []
    picture = Image.fromarray(make_probes(512)[0]).resize(PHOTOGRAPH, Image.Resampling.BICUBIC)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(UNIQUE):
            data = io.BytesIO()
            shifted = np.roll(np.asarray(picture), rng.integers(0, 300, 2), (0, 1))
            Image.fromarray(shifted).save(data, "JPEG", quality=88)
            path = Path(folder, f"{number}.jpg")
            path.write_bytes(data.getvalue())
            found.append(Photograph(path.name, hashlib.sha256(data.getvalue()).hexdigest(), (path,)))
        yield found


def regions(architecture: str, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """By roi-align, from prepared images in memory, over the same network on a batch of them on the device."""
    encoder, rng = make_encoder(architecture), np.random.default_rng(0)
    plan, view = choose_plan(encoder, str(device), "auto", options.batch), WholeImages(224, 32, 2.0)
    width, height = view.size(PHOTOGRAPH)
    full = max(1, options.batch * 224 * 224 // (width * height))
    corners = np.sort(rng.random((REGIONS + 1, 2, 2), dtype=np.float32), axis=1).reshape(-1, 4)
    corners[0] = 0, 0, 1, 1
    known = Candidates(corners * np.tile(np.float32(PHOTOGRAPH), 2), np.ones(REGIONS + 1, np.float32))
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    prepared = [PreparedImage(known, pixels, PHOTOGRAPH, Counter(), 0.0, 0.0)] * options.images
    extractor, bare = RegionExtractor(encoder, plan, view), region_encoder(encoder).optimised(device, plan.dtype)
    batch = upload(np.stack([pixels] * full), device), upload(np.stack([corners] * full), device)

    def forward() -> None:
        with torch.inference_mode(), full_float32():
            for _ in range(0, options.images, full):
                bare(*batch)

    ours, reference = (finished(work, device) for work in (lambda: extractor(prepared), forward))
    result = compare(f"{architecture} regions over the bare forward pass", ours, reference, options.pairs)
    return {**result, "images_per_s": options.images / result["ours"], "regions": REGIONS + 1, "batch": full}

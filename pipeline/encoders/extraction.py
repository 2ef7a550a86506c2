"""Running an encoder over many images: the precision and the batch size that suit it and its device, and where the
time goes."""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol, TypeVar

import numpy as np
import torch

from pipeline.compute.device import (
    MAX_BATCH_IMAGES,
    Arriving,
    OomBatcher,
    find_device,
    full_float32,
    grow_batch,
    upload,
)
from pipeline.compute.precision import fast_at_bfloat16
from pipeline.images.preprocess import View

BFLOAT16_COSINE = 0.9997
"""Least cosine between a probe's features in bfloat16 and float32 for which `auto` chooses bfloat16. Photographs were
up to three times as far off as probes in our measurements, which makes it 0.999 for them."""
PROBES = 8
"""Images on which precisions have to agree."""
MOST_ELEMENTS, WIDEST = 2**31 - 1, 64
"""Of an activation of a batch, since kernels of CUDA and cuDNN have counted more by integers that overflow; and of one
for a pixel of an image, as in VGG's first map."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExtractionPlan:
    """How to run an encoder, on at most `batch_size` images at once."""

    device: torch.device
    dtype: torch.dtype
    batch_size: int

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")


class Network(Protocol):
    """An encoder that computes in batches, on a device and in a precision of choice."""

    def optimised(self, device: torch.device, dtype: torch.dtype) -> torch.nn.Module:
        """Return a faster copy on `device`, in `dtype`, which maps input tensors (n, ...) to features (n, dim)."""
        ...


class ProbedNetwork(Network, Protocol):
    """An encoder that has a few inputs by which precisions are compared."""

    def probe(self) -> tuple[torch.Tensor, ...]: ...


class Extractor:
    """An encoder prepared for a plan: `extractor(images)` are their features; `view` is what it takes of a photograph.

    If a GPU runs out of memory, that batch and all later ones are halved.
    """

    def __init__(self, encoder: Network, plan: ExtractionPlan, view: View | None = None) -> None:
        self.plan, self.view = plan, view
        self.encode = encoder.optimised(plan.device, plan.dtype)
        self._under_way: Arriving | None = None

    def __call__(self, images: Iterable[np.ndarray]) -> np.ndarray:
        """Features (n, dim) float32 of `images` (side, side, 3) uint8, in order.

        The next batch is read while a GPU works on the last one.
        """
        batches = _Batches(self)
        for image in images:
            batches.add(image)
        batches.start()
        return batches.features()

    def start(self, *batch: torch.Tensor) -> Arriving:
        """The encoder's output for one batch, given by its input tensors (n, ...), on its way from a GPU; that of the
        batch before is here."""
        batcher, device = OomBatcher(self.plan.batch_size, "image"), self.plan.device

        def encode(rows: slice) -> torch.Tensor:
            return self.encode(*(upload(tensor[rows], device) for tensor in batch))

        with torch.inference_mode(), full_float32():
            output = Arriving(torch.cat(batcher.map(encode, len(batch[0]))))
        self.plan = replace(self.plan, batch_size=batcher.size)
        if self._under_way is not None:
            self._under_way.numpy()
        self._under_way = output
        return output


class _Batches:
    """What an extractor makes of images that come one by one."""

    def __init__(self, extractor: Extractor) -> None:
        self.extractor = extractor
        self.images: list[np.ndarray] = []
        self.started: list[Arriving] = []

    def add(self, image: np.ndarray) -> None:
        self.images.append(image)
        if len(self.images) >= self.extractor.plan.batch_size:
            self.start()

    def start(self) -> None:
        """Have the images encoded that wait for more."""
        if self.images:
            self.started.append(self.extractor.start(torch.from_numpy(np.stack(self.images))))
            self.images = []

    def features(self) -> np.ndarray:
        """(n, dim) of all images whose encoding has started."""
        return np.concatenate([block.numpy() for block in self.started] or [np.empty((0, 0), np.float32)])


def extract_in_step(
    pictures: Iterable[Sequence[np.ndarray]], extractors: Sequence[Extractor], lengths: Iterable[int]
) -> Iterator[list[np.ndarray]]:
    """The features (n, dim) float32 of each `n` of `lengths` pictures in turn, by each of the `extractors`, each of
    which takes its own of every picture's views.

    No batch has pictures of two turns; a GPU has its next batch before the last turn's features are waited for.
    """
    pictures, before = iter(pictures), None
    for length in lengths:
        turn = [_Batches(extractor) for extractor in extractors]
        for views in islice(pictures, length):
            for batches, view in zip(turn, views, strict=True):
                batches.add(view)
            if before is not None and any(batches.started for batches in turn):
                yield [batches.features() for batches in before]
                before = None
        for batches in turn:
            batches.start()
        if before is not None:
            yield [batches.features() for batches in before]
        before = turn
    if before is not None:
        yield [batches.features() for batches in before]


def choose_plan(encoder: ProbedNetwork, device: str, precision: str, batch_size: int) -> ExtractionPlan:
    """Choose a plan for a `device` (auto, cpu, cuda, cuda:N) and a `precision` (auto, float32, bfloat16).

    `auto` is bfloat16 if it is fast on the device and accurate enough for the encoder. Raises UsageError for a missing
    device.
    """
    chosen = find_device(device)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    if precision == "auto" and fast_at_bfloat16(chosen):
        cosine = bfloat16_cosine(encoder, chosen)
        dtype = torch.bfloat16 if cosine >= BFLOAT16_COSINE else torch.float32
        log.info("cosine of bfloat16 to float32 features %.5f: computing in %s", cosine, dtype)
    return ExtractionPlan(chosen, dtype, batch_size)


def bfloat16_cosine(encoder: ProbedNetwork, device: torch.device) -> float:
    """Return the least cosine, over a few inputs, between an encoder's features in bfloat16 and in float32."""
    probe = encoder.probe()
    plans = (ExtractionPlan(device, dtype, batch_size=1) for dtype in (torch.float32, torch.bfloat16))
    exact, rounded = (torch.from_numpy(Extractor(encoder, plan).start(*probe).numpy()) for plan in plans)
    return torch.nn.functional.cosine_similarity(exact, rounded).min().item()


def make_probes(side: int) -> np.ndarray:
    """(PROBES, side, side, 3) uint8: noise at every scale, stronger at coarser scales, as in photographs."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.zeros(PROBES, 3, side, side)
    cells = 2
    while cells <= side:
        noise = torch.randn(PROBES, 3, cells, cells, generator=generator)
        pixels += torch.nn.functional.interpolate(noise, size=(side, side), mode="bilinear")
        cells *= 2
    return (pixels * 25 + 128).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def grow(extractor: Extractor) -> None:
    """On a GPU, let an extractor of pixels take as many images at once as `grow_batch` finds worth it."""
    assert extractor.view is not None
    plan = extractor.plan
    side = extractor.view.preprocessing.side
    if plan.device.type != "cuda":
        return
    probes = torch.from_numpy(make_probes(side)).to(plan.device)

    def describe(images: int) -> np.ndarray:
        return extractor.encode(probes.repeat(-(-images // PROBES), 1, 1, 1)[:images]).cpu().numpy()

    with torch.inference_mode(), full_float32():
        most = min(MAX_BATCH_IMAGES, MOST_ELEMENTS // (WIDEST * side**2))
        extractor.plan = replace(plan, batch_size=grow_batch(describe, min(plan.batch_size, most), most))
    log.info("%d images at once", extractor.plan.batch_size)


Item = TypeVar("Item")


class Stopwatch:
    """Where the time of an extraction goes; the rest, beside decoding and writing, is the forward pass."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._start = time.perf_counter()
        self._seconds: dict[str, float] = {"decode": 0.0, "write": 0.0}

    def iterate(self, task: str, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items. Waiting for each counts as `task`, except for time counted under another name meanwhile."""
        remaining = iter(items)
        while True:
            with self.measure(task):
                waiting = list(islice(remaining, 1))
            if not waiting:
                return
            yield waiting[0]

    @contextmanager
    def measure(self, task: str) -> Iterator[None]:
        start, counted = time.perf_counter(), sum(self._seconds.values())
        try:
            yield
        finally:
            meanwhile = sum(self._seconds.values()) - counted
            spent = time.perf_counter() - start - meanwhile
            self._seconds[task] = self._seconds.get(task, 0.0) + spent

    def describe(self, images: int) -> str:
        """Of so many `images` since it was started; starts it again."""
        total = time.perf_counter() - self._start
        shares = {**self._seconds, "forward": total - sum(self._seconds.values())}
        self.restart()
        parts = ", ".join(f"{task} {seconds / total:.0%}" for task, seconds in shares.items())
        limit = max(shares, key=shares.__getitem__)
        return f"{images} images in {total:.1f} s, {images / total:.0f} images/s: {parts}; limited by {limit}"

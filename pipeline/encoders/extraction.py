"""Runs an encoder over many inputs: chooses the precision and the batch size, and measures the time of each step."""

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
"""Smallest cosine between the features of a probe in bfloat16 and in float32 for which the precision `auto` chooses
bfloat16. Probes are generated images or texts on which the two precisions are compared. In our measurements, the
deviation of the cosine from 1 was up to three times as large for photos, so the cosine for photos is about 0.999 or
more."""
PROBES = 8
"""Number of generated images on which two precisions are compared."""
MAX_ACTIVATION_ELEMENTS = 2**31 - 1
"""Largest number of elements in an activation of a batch. Some kernels of CUDA and cuDNN count elements with 32-bit
integers, which would overflow. `grow` chooses no larger batch."""
MAX_CHANNELS_PER_PIXEL = 64
"""Largest number of elements in an activation per pixel of the image, as in the first layer of VGG."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExtractionPlan:
    """The device and the dtype of an encoder, and the largest number of inputs in a batch."""

    device: torch.device
    dtype: torch.dtype
    batch_size: int

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")


class Network(Protocol):
    """An encoder that can compute in batches on any device and in any precision."""

    def optimised(self, device: torch.device, dtype: torch.dtype) -> torch.nn.Module:
        """Return a faster copy on `device`, in `dtype`, which maps input tensors (n, ...) to features (n, dim)."""
        ...


class ProbedNetwork(Network, Protocol):
    """An encoder that provides inputs for comparing precisions."""

    def probe(self) -> tuple[torch.Tensor, ...]:
        """Return a few inputs as tensors (n, ...), on which `choose_plan` compares two precisions."""
        ...


class Extractor:
    """An encoder on the device and in the precision of a plan. `extractor(images)` returns features.

    `view` says how a photo becomes an input of the encoder. If a GPU runs out of memory, the size of the present batch
    and of all later batches is halved.
    """

    def __init__(self, encoder: Network, plan: ExtractionPlan, view: View | None = None) -> None:
        self.plan = plan
        self.view = view
        self.encode = encoder.optimised(plan.device, plan.dtype)
        self._under_way: Arriving | None = None

    def __call__(self, images: Iterable[np.ndarray]) -> np.ndarray:
        """Return the features (n, dim) float32 of n images (side, side, 3) uint8, or (0, 0) without images.

        While a GPU computes a batch, the next batch is read.
        """
        batches = _Batches(self)
        for image in images:
            batches.add(image)
        batches.start()
        return batches.features()

    def start(self, *batch: torch.Tensor) -> Arriving:
        """Start to encode a batch of n inputs, which are given by one or more tensors (n, ...). Return the output.

        The output may still be on its way from a GPU, and the method `numpy` of the output waits for its arrival. This
        method `start` does not return before the output of the previous batch has arrived.
        """
        batcher = OomBatcher(self.plan.batch_size, "image")
        device = self.plan.device

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
    """The batches of images that an extractor encodes, and the features of these images.

    Each image is copied once, into its row of the batch. If the extractor uses a GPU, the batch is in pinned memory,
    from which the GPU copies the images while the CPU continues. If `count` is given, at most `count` images may be
    added.
    """

    def __init__(self, extractor: Extractor, count: int | None = None) -> None:
        self.extractor = extractor
        self.count = count
        self.rows: torch.Tensor | None = None
        self.filled = 0
        self.started: list[Arriving] = []

    def add(self, image: np.ndarray) -> None:
        plan = self.extractor.plan
        if self.rows is None:
            rows = min(plan.batch_size, self.count or plan.batch_size)
            dtype = torch.from_numpy(np.empty(0, image.dtype)).dtype
            self.rows = torch.empty((rows, *image.shape), dtype=dtype, pin_memory=plan.device.type == "cuda")
        self.rows.numpy()[self.filled] = image
        self.filled += 1
        if self.filled >= min(plan.batch_size, len(self.rows)):
            self.start()

    def start(self) -> None:
        """Start to encode the images that have been collected so far."""
        if self.rows is not None:
            self.started.append(self.extractor.start(self.rows[: self.filled]))
            self.rows = None
            self.filled = 0

    def features(self) -> np.ndarray:
        """Return the features (n, dim) of all images whose encoding has started, or (0, 0) if there are none."""
        return np.concatenate([block.numpy() for block in self.started] or [np.empty((0, 0), np.float32)])


def extract_in_step(
    pictures: Iterable[Sequence[np.ndarray]], extractors: Sequence[Extractor], lengths: Iterable[int]
) -> Iterator[list[np.ndarray]]:
    """Extract features of images with several encoders at once, group by group.

    `pictures` yields, for each image, a sequence with the pixels for each of the `extractors`. `lengths` yields the
    number of images in each group. For each group, the function yields a list with the features (n, dim) float32 by
    each extractor. A batch has only images of one group. A GPU gets the first batch of a group before the function
    waits for the features of the previous group.
    """
    pictures = iter(pictures)
    before = None
    for length in lengths:
        group = [_Batches(extractor, length) for extractor in extractors]
        for views in islice(pictures, length):
            for batches, view in zip(group, views, strict=True):
                batches.add(view)
            if before is not None and any(batches.started for batches in group):
                yield [batches.features() for batches in before]
                before = None
        for batches in group:
            batches.start()
        if before is not None:
            yield [batches.features() for batches in before]
        before = group
    if before is not None:
        yield [batches.features() for batches in before]


def choose_plan(encoder: ProbedNetwork, device: str, precision: str, batch_size: int) -> ExtractionPlan:
    """Choose a plan for a `device` (auto, cpu, cuda, cuda:N), a `precision` (auto, float32, bfloat16) and a batch size.

    The precision `auto` is bfloat16 if bfloat16 is fast on the device and accurate enough for the encoder, and else
    float32. Raises UsageError if the device does not exist.
    """
    chosen = find_device(device)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    if precision == "auto" and fast_at_bfloat16(chosen):
        cosine = bfloat16_cosine(encoder, chosen)
        dtype = torch.bfloat16 if cosine >= BFLOAT16_COSINE else torch.float32
        log.info("The cosine of features in bfloat16 and in float32 is at least %.5f, so %s is used", cosine, dtype)
    return ExtractionPlan(chosen, dtype, batch_size)


def bfloat16_cosine(encoder: ProbedNetwork, device: torch.device) -> float:
    """Return the smallest cosine, over the inputs of `encoder.probe()`, between features in bfloat16 and in float32."""
    probe = encoder.probe()
    plans = (ExtractionPlan(device, dtype, batch_size=1) for dtype in (torch.float32, torch.bfloat16))
    exact, rounded = (torch.from_numpy(Extractor(encoder, plan).start(*probe).numpy()) for plan in plans)
    return torch.nn.functional.cosine_similarity(exact, rounded).min().item()


def make_probes(side: int) -> np.ndarray:
    """Generate probe images (PROBES, side, side, 3) uint8: noise at every scale, as in photos."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.zeros(PROBES, 3, side, side)
    cells = 2
    while cells <= side:
        noise = torch.randn(PROBES, 3, cells, cells, generator=generator)
        pixels += torch.nn.functional.interpolate(noise, size=(side, side), mode="bilinear")
        cells *= 2
    return (pixels * 25 + 128).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def grow(extractor: Extractor) -> None:
    """Increase the batch size of an extractor on a GPU as long as larger batches are faster and fit into the memory.

    The extractor must take pixels. On the CPU the batch size is not changed.
    """
    assert extractor.view is not None
    plan = extractor.plan
    side = extractor.view.preprocessing.side
    if plan.device.type != "cuda":
        return
    probes = torch.from_numpy(make_probes(side)).to(plan.device)

    def extract_rows(images: int) -> np.ndarray:
        return extractor.encode(probes.repeat(-(-images // PROBES), 1, 1, 1)[:images]).cpu().numpy()

    with torch.inference_mode(), full_float32():
        most = min(MAX_BATCH_IMAGES, MAX_ACTIVATION_ELEMENTS // (MAX_CHANNELS_PER_PIXEL * side**2))
        extractor.plan = replace(plan, batch_size=grow_batch(extract_rows, min(plan.batch_size, most), most))
    log.info("The GPU encodes %d images at once", extractor.plan.batch_size)


Item = TypeVar("Item")


class Stopwatch:
    """A clock for the steps of an extraction. Time that is not measured counts as the forward pass of the networks."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._start = time.perf_counter()
        self._seconds: dict[str, float] = {"decode": 0.0, "write": 0.0}

    def iterate(self, task: str, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the `items`, and count the time of waiting for each item as time of the step `task`.

        Time that is counted for another step during the wait is not counted twice.
        """
        remaining = iter(items)
        while True:
            with self.measure(task):
                waiting = list(islice(remaining, 1))
            if not waiting:
                return
            yield waiting[0]

    @contextmanager
    def measure(self, task: str) -> Iterator[None]:
        start = time.perf_counter()
        counted = sum(self._seconds.values())
        try:
            yield
        finally:
            meanwhile = sum(self._seconds.values()) - counted
            spent = time.perf_counter() - start - meanwhile
            self._seconds[task] = self._seconds.get(task, 0.0) + spent

    def format_speed(self, images: int) -> str:
        """Return a line for the log with the images per second and each step's share of the time. Restart the clock.

        `images` is the number of images that were encoded since the clock was started or restarted.
        """
        total = time.perf_counter() - self._start
        shares = {**self._seconds, "forward": total - sum(self._seconds.values())}
        self.restart()
        parts = ", ".join(f"{task} {seconds / total:.0%}" for task, seconds in shares.items())
        limit = max(shares, key=shares.__getitem__)
        return f"{images} images in {total:.1f} s, {images / total:.0f} images/s: {parts}; limited by {limit}"

"""Regions to train on: squares of pixels from labelled images, objects and background in a fixed proportion."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.errors import InputError
from pipeline.images.boxes import overlaps
from pipeline.images.decode import ImageLimits
from pipeline.images.preprocess import Photograph, open_photograph
from pipeline.images.warping import Crops
from pipeline.workers import Failure

TRIES = 20
JITTER = 0.25
"""How far a corner of an object's region may lie from its box's, as a share of the box's side."""
SMALLEST = 0.1
"""Least side of a background region, as a share of the image's."""


class LabelledImage(NamedTuple):
    """An image with the boxes (n, 4) of its objects and their classes (n,), from 1; 0 is the background."""

    photograph: Photograph
    boxes: np.ndarray
    classes: np.ndarray


class RegionSample(NamedTuple):
    """Regions of one or more images: `pixels` (n, side, side, 3) uint8 and `classes` (n,) int64."""

    pixels: np.ndarray
    classes: np.ndarray


@dataclass(frozen=True)
class Proportions:
    """Regions of each image: `positives` that overlap an object by at least `positive_iou`, and `background` that
    overlap every object by less than `background_iou` (R-CNN's 32 and 96 of a batch are 1 and 3 of 32 images)."""

    positives: int
    background: int
    positive_iou: float
    background_iou: float


@dataclass(frozen=True)
class RegionSampler:
    """`sampler((number, image))`: a Sample that follows from the seed and the number. Travels to other processes."""

    read: Callable[..., bytes]
    limits: ImageLimits
    crops: Crops
    proportions: Proportions
    seed: int

    def __call__(self, item: tuple[int, LabelledImage]) -> RegionSample:
        """Half of the regions are mirrored. Raises InputError where the image cannot be read."""
        number, labelled = item
        rng = np.random.default_rng([self.seed, number])
        image = open_photograph(self.read, self.limits, labelled.photograph)
        boxes, classes = sample_regions(image.size, labelled.boxes, labelled.classes, self.proportions, rng)
        pixels = np.stack([self.crops.warp(image, box) for box in boxes])
        mirrored = rng.random(len(pixels)) < 0.5
        pixels[mirrored] = pixels[mirrored, :, ::-1]
        return RegionSample(pixels, classes)


def sample_regions(
    size: tuple[int, int], boxes: np.ndarray, classes: np.ndarray, proportions: Proportions, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes (n, 4) in an image of `size` (width, height), and their classes (n,): objects first, then background.

    Where no background is found beside large objects there is less of it.
    """
    chosen = rng.integers(len(boxes), size=proportions.positives)
    positives = [_near(boxes[row], size, proportions.positive_iou, rng) for row in chosen]
    low = rng.random((TRIES * proportions.background, 2))
    sides = SMALLEST + (1 - SMALLEST) * rng.random(low.shape) ** 2
    corners = low * (1 - sides) * size
    windows = np.hstack([corners, corners + sides * size])
    background = windows[overlaps(windows, boxes).max(axis=1) < proportions.background_iou][: proportions.background]
    labels = np.concatenate([classes[chosen], np.zeros(len(background), np.int64)])
    return np.concatenate([positives, background]), labels


def _near(box: np.ndarray, size: tuple[int, int], iou: float, rng: np.random.Generator) -> np.ndarray:
    """A box in the image that overlaps `box` by at least `iou`; itself where none is found."""
    sides = np.tile(box[2:] - box[:2], 2)
    tries = np.clip(box + sides * rng.uniform(-JITTER, JITTER, (TRIES, 4)), 0, np.tile(size, 2))
    good = np.flatnonzero(overlaps(tries, box[None])[:, 0] >= iou)
    return tries[good[0]] if len(good) else box


def schedule_images(images: int, per_batch: int, iterations: int, seed: int) -> np.ndarray:
    """(iterations * per_batch,) numbers below `images`: one shuffled epoch after another."""
    wanted, rng = iterations * per_batch, np.random.default_rng(seed)
    epochs = [rng.permutation(images) for _ in range(-(-wanted // images))]
    return np.concatenate(epochs)[:wanted]


def batch_samples(samples: Iterable[RegionSample | Failure], per_batch: int) -> Iterator[RegionSample]:
    """Samples of `per_batch` images together; images that failed are left out. InputError where a whole batch did."""
    waiting: list[RegionSample | Failure] = []
    for sample in samples:
        waiting.append(sample)
        if len(waiting) == per_batch:
            yield _join(waiting)
            waiting = []
    if waiting:
        yield _join(waiting)


def _join(samples: list[RegionSample | Failure]) -> RegionSample:
    good = [sample for sample in samples if isinstance(sample, RegionSample)]
    if not good:
        raise InputError(f"no image of a whole batch could be read ({samples[0].reason}); run ingest again")
    return RegionSample(np.concatenate([s.pixels for s in good]), np.concatenate([s.classes for s in good]))

"""Training regions: crops of labelled images, objects and background in a fixed proportion."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
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
"""How far a region's corner may be from the object's, as a share of the object's side."""
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
    """Regions per image: `positives` with an overlap of at least `positive_iou` with an object, `background` with less
    than `background_iou` with every object. By default R-CNN's 32 and 96 per batch of 32 images."""

    positives: int = 1
    background: int = 3
    positive_iou: float = 0.5
    background_iou: float = 0.5


@dataclass(frozen=True)
class RegionSampler:
    """`sampler((number, image))`: a RegionSample determined by the seed and the number. Can be pickled."""

    read: Callable[..., bytes]
    limits: ImageLimits
    crops: Crops
    proportions: Proportions
    seed: int

    def __call__(self, item: tuple[int, LabelledImage]) -> RegionSample:
        """Half of the regions are mirrored. Raises InputError if the image cannot be read."""
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

    There is less background if large objects leave no room for it.
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
    """A random box in the image that overlaps `box` by at least `iou`, or `box` itself if none is found."""
    sides = np.tile(box[2:] - box[:2], 2)
    tries = np.clip(box + sides * rng.uniform(-JITTER, JITTER, (TRIES, 4)), 0, np.tile(size, 2))
    good = np.flatnonzero(overlaps(tries, box[None])[:, 0] >= iou)
    return tries[good[0]] if len(good) else box


def schedule_images(images: int, per_batch: int, iterations: int, seed: int) -> np.ndarray:
    """(iterations * per_batch,) image numbers, in shuffled epochs."""
    wanted, rng = iterations * per_batch, np.random.default_rng(seed)
    epochs = [rng.permutation(images) for _ in range(-(-wanted // images))]
    return np.concatenate(epochs)[:wanted]


def batch_samples(samples: Iterable[RegionSample | Failure], per_batch: int) -> Iterator[RegionSample]:
    """The samples of every `per_batch` images, without failed images. Raises InputError if a whole batch failed."""
    samples = iter(samples)
    for batch in iter(lambda: list(islice(samples, per_batch)), []):
        good = [sample for sample in batch if isinstance(sample, RegionSample)]
        if not good:
            raise InputError(f"no image of a whole batch could be read ({batch[0].reason}); run ingest again")
        yield RegionSample(np.concatenate([s.pixels for s in good]), np.concatenate([s.classes for s in good]))

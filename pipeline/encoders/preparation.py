"""A photograph to the regions that a network takes: proposals, selection, pixels; and training
regions of labelled photographs."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from PIL import Image

from pipeline.compute.workers import Failure
from pipeline.encoders.material import Settings
from pipeline.errors import InputError
from pipeline.images.boxes import Candidates, Selection, overlaps, propose_windows, search_selectively, select
from pipeline.images.preprocess import Photograph, PhotographReader, Preprocessing, prepare


@dataclass(frozen=True)
class Crops:
    """Warps every region to a square of `side` pixels, with a border of `context` pixels from around its box.

    Context outside the image is filled with `mean` (3 numbers in [0, 1]).
    """

    side: int
    context: int
    mean: tuple[float, float, float]

    def render(self, image: Image.Image, boxes: np.ndarray) -> np.ndarray:
        """(n, side, side, 3) uint8 of an RGB image's boxes (n, 4); row 0, the whole image, gets no context."""
        whole = prepare(image, Preprocessing(self.side, None, self.mean, self.mean))
        return np.stack([whole, *(self.warp(image, box) for box in boxes[1:])])

    def warp(self, image: Image.Image, box: np.ndarray) -> np.ndarray:
        """(side, side, 3) uint8 of one box and its context."""
        from pipeline.images.resize import resize  # imports torch

        low, high = box[:2].astype(float), box[2:].astype(float)
        margin = (high - low) * self.context / (self.side - 2 * self.context)
        low, high = low - margin, high + margin
        inside = np.clip(low, 0, image.size), np.clip(high, 0, image.size)
        # Where the part inside the image falls in the square; at least one pixel.
        scale = self.side / (high - low)
        start = np.clip(np.rint((inside[0] - low) * scale), 0, self.side - 1).astype(int)
        stop = np.clip(np.rint((inside[1] - low) * scale), start + 1, self.side).astype(int)
        width, height = (stop - start).tolist()
        part = resize(image, (width, height), box=(*inside[0].tolist(), *inside[1].tolist()))
        if width == height == self.side:
            return part
        square = np.empty((self.side, self.side, 3), np.uint8)
        square[:] = np.rint(np.multiply(self.mean, 255))
        square[start[1] : stop[1], start[0] : stop[0]] = part
        return square


@dataclass(frozen=True)
class WholeImages:
    """Resizes whole images: the shorter side to `side` pixels, the longer in proportion, rounded to a multiple of
    `step` (to limit the number of sizes) and at most `aspect` times the shorter."""

    side: int
    step: int
    aspect: float

    def size(self, size: tuple[int, int]) -> tuple[int, int]:
        """The new (width, height) of an image of `size`."""
        width, height = size
        ratio = min(max(size) / min(size), self.aspect)
        longer = max(self.side, round(self.side * ratio / self.step) * self.step)
        return (longer, self.side) if width >= height else (self.side, longer)

    def render(self, image: Image.Image, boxes: np.ndarray) -> np.ndarray:
        """(height, width, 3) uint8 of an RGB image, whatever its boxes."""
        from pipeline.images.resize import resize  # imports torch

        return resize(image, self.size(image.size))


MAP_SIDE = 384
"""Pixels of the shorter side of a whole image from whose map regions are pooled."""
MAP_STEP = 32
"""The longer side of a map is a multiple of this, so that images share a batch."""
MAP_ASPECT = 2.5
"""Longer over shorter side; more elongated images are squashed."""
JUDGED = 60
"""Proposals of an image that a classifier judges."""


class Request(NamedTuple):
    """An image whose regions are wanted, and its known boxes."""

    photograph: Photograph
    known: Candidates


class PreparedImage(NamedTuple):
    """An image ready for the network: its regions, the view's pixels, (width, height), and the counts of `select`."""

    regions: Candidates
    pixels: np.ndarray
    size: tuple[int, int]
    counts: Counter[str]


@dataclass(frozen=True)
class Cutting:
    """How an image is cut into regions: `proposals`, which are `grid` windows, those of `selective-search`, or else
    known boxes; selection, and rendering by `view`."""

    proposals: str
    selection: Selection
    view: Crops | WholeImages

    @property
    def room(self) -> int:
        """Bytes that suffice for the pixels of a prepared image."""
        if isinstance(self.view, Crops):
            return 3 * (1 + self.selection.count) * self.view.side**2
        return 3 * math.prod(self.view.size((math.ceil(self.view.aspect), 1)))

    def __call__(self, image: Image.Image, known: Candidates) -> PreparedImage:
        """The regions of an RGB image with the `known` boxes."""
        if self.proposals == "grid":
            known = propose_windows(image.size)
        elif self.proposals == "selective-search":
            known = search_selectively(np.asarray(image))
        regions, counts = select(known, image.size, self.selection)
        return PreparedImage(regions, self.view.render(image, regions.boxes), image.size, counts)

    @classmethod
    def from_settings(cls, settings: Settings, preprocessing: Preprocessing) -> "Cutting":
        """The cutting that the section `regions` of a configuration defines, for a network with `preprocessing`."""
        crops = Crops(settings["crop_side"] or preprocessing.side, settings["context"], preprocessing.mean)
        maps = WholeImages(MAP_SIDE, MAP_STEP, MAP_ASPECT)
        count = JUDGED if settings.get("score") == "classifier" else settings["count"]
        return cls(
            settings["proposals"],
            Selection(settings["iou"], count, settings["fill"]),
            crops if settings["features"] == "crops" else maps,
        )


@dataclass(frozen=True)
class Preparation:
    """`preparation(request)` opens an image and cuts it into regions. Can be pickled."""

    reader: PhotographReader
    cutting: Cutting

    def open(self, photograph: Photograph) -> np.ndarray:
        """(height, width, 3) uint8 of a whole image. Raises InputError saying what is wrong with it."""
        return np.array(self.reader.open(photograph))

    def __call__(self, request: Request) -> PreparedImage:
        """Raises InputError saying what is wrong with the image."""
        return self.cutting(self.reader.open(request.photograph), request.known)


POSITIVES, BACKGROUND, OVERLAP = 1, 3, 0.5
"""Regions that are drawn of an image: those that overlap an object by at least OVERLAP, and those that overlap every
object by less, as many of each as R-CNN's 32 and 96 per batch of 32 images."""
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
class RegionSampler:
    """`sampler((number, image))`: a RegionSample determined by the seed and the number. Can be pickled."""

    reader: PhotographReader
    crops: Crops
    seed: int

    def __call__(self, item: tuple[int, LabelledImage]) -> RegionSample:
        """Half of the regions are mirrored. Raises InputError if the image cannot be read."""
        number, labelled = item
        rng = np.random.default_rng([self.seed, number])
        image = self.reader.open(labelled.photograph)
        boxes, classes = sample_regions(image.size, labelled.boxes, labelled.classes, rng)
        pixels = np.stack([self.crops.warp(image, box) for box in boxes])
        mirrored = rng.random(len(pixels)) < 0.5
        pixels[mirrored] = pixels[mirrored, :, ::-1]
        return RegionSample(pixels, classes)


def sample_regions(
    size: tuple[int, int], boxes: np.ndarray, classes: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes (n, 4) in an image of `size` (width, height), and their classes (n,): objects first, then background.

    There is less background if large objects leave no room for it.
    """
    chosen = rng.integers(len(boxes), size=POSITIVES)
    positives = [_near(boxes[row], size, rng) for row in chosen]
    low = rng.random((TRIES * BACKGROUND, 2))
    sides = SMALLEST + (1 - SMALLEST) * rng.random(low.shape) ** 2
    corners = low * (1 - sides) * size
    windows = np.hstack([corners, corners + sides * size])
    background = windows[overlaps(windows, boxes).max(axis=1) < OVERLAP][:BACKGROUND]
    labels = np.concatenate([classes[chosen], np.zeros(len(background), np.int64)])
    return np.concatenate([positives, background]), labels


def _near(box: np.ndarray, size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """A random box in the image that overlaps `box` by at least OVERLAP, or `box` itself if none is found."""
    sides = np.tile(box[2:] - box[:2], 2)
    tries = np.clip(box + sides * rng.uniform(-JITTER, JITTER, (TRIES, 4)), 0, np.tile(size, 2))
    good = np.flatnonzero(overlaps(tries, box[None])[:, 0] >= OVERLAP)
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
            reason = next(sample.reason for sample in batch if isinstance(sample, Failure))
            raise InputError(f"no image of a whole batch could be read ({reason}); run ingest again")
        yield RegionSample(np.concatenate([s.pixels for s in good]), np.concatenate([s.classes for s in good]))

"""Prepares the regions of a photo for a network: proposes, selects and renders them. Samples regions for training."""

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
    """A view that renders regions as crops, as in R-CNN.

    Every region is warped to a square of `side` pixels. The box of the region fills the square except for a border of
    `context` pixels, which shows the surroundings of the box. Surroundings outside the image are filled with `mean` (3
    numbers in [0, 1]). Only the first region of an image, which is the whole image, has no border.
    """

    side: int
    context: int
    mean: tuple[float, float, float]

    def render(self, image: Image.Image, boxes: np.ndarray) -> np.ndarray:
        """Return crops (n, side, side, 3) uint8 of the boxes (n, 4), in pixels, of an RGB image.

        Box 0 must be the whole image, and is rendered without context.
        """
        whole = prepare(image, Preprocessing(self.side, None, self.mean, self.mean))
        return np.stack([whole, *(self.warp(image, box) for box in boxes[1:])])

    def warp(self, image: Image.Image, box: np.ndarray) -> np.ndarray:
        """Return a crop (side, side, 3) uint8 of a box (x1, y1, x2, y2) in pixels of an RGB image, with its context."""
        from pipeline.images.resize import resize  # The import of torch takes seconds.

        low = box[:2].astype(float)
        high = box[2:].astype(float)
        margin = (high - low) * self.context / (self.side - 2 * self.context)
        low = low - margin
        high = high + margin
        inside = np.clip(low, 0, image.size), np.clip(high, 0, image.size)
        # `start` and `stop` are the corners, in the square, of the part of the box and its context that is inside the
        # image. This part gets at least one pixel.
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
    """A view that renders whole images, from whose activation maps regions are pooled.

    The shorter side is resized to `side` pixels, and the longer side in proportion. The longer side is rounded to a
    multiple of `step`, which limits the number of sizes, and is at most `aspect` times the shorter side.
    """

    side: int
    step: int
    aspect: float

    def size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the (width, height) in pixels to which an image of `size` (width, height) is resized.

        The shorter side becomes `side`. The longer side becomes a multiple of `step`, but at least `side`.
        """
        width, height = size
        ratio = min(max(size) / min(size), self.aspect)
        longer = max(self.side, round(self.side * ratio / self.step) * self.step)
        return (longer, self.side) if width >= height else (self.side, longer)

    def render(self, image: Image.Image, boxes: np.ndarray) -> np.ndarray:
        """Return the resized pixels (height, width, 3) uint8 of an RGB image. The boxes are not used."""
        from pipeline.images.resize import resize  # The import of torch takes seconds.

        return resize(image, self.size(image.size))


MAP_SIDE = 384
"""Shorter side in pixels of a whole image from whose activation map regions are pooled."""
MAP_STEP = 32
"""Step in pixels of the longer side of an image whose shorter side is MAP_SIDE. The longer side is a multiple of this
step, so that more images have the same size and can share a batch."""
MAP_ASPECT = 2.5
"""Largest ratio of the longer side to the shorter side MAP_SIDE of an image. More elongated images are squashed."""
CLASSIFIED_REGIONS = 60
"""Number of proposals per image that a classifier scores, before the best of them are kept."""


class Request(NamedTuple):
    """A request for the regions of an image.

    `known` are the boxes of the image in pixels that a file or a detector gives, or NONE if there are none.
    """

    photograph: Photograph
    known: Candidates


class PreparedImage(NamedTuple):
    """An image that is prepared for the network.

    `regions` are its n regions. `pixels` uint8 are their crops (n, side, side, 3) or the whole image
    (height, width, 3), as the view has rendered them. `size` is the original (width, height), and `counts` has the
    numbers of clipped and dropped proposals and of added windows (see `select`).
    """

    regions: Candidates
    pixels: np.ndarray
    size: tuple[int, int]
    counts: Counter[str]


@dataclass(frozen=True)
class Cutting:
    """The way in which an image is cut into regions.

    `proposals` says where the boxes come from: `grid` means windows of a grid, `selective-search` means the result of
    selective search, and any other value means the known boxes of the image. `selection` says which boxes are kept, and
    `view` renders the kept boxes.
    """

    proposals: str
    selection: Selection
    view: Crops | WholeImages

    @property
    def room(self) -> int:
        """The largest number of bytes that the pixels of a prepared image can have."""
        if isinstance(self.view, Crops):
            return 3 * (1 + self.selection.count) * self.view.side**2
        return 3 * math.prod(self.view.size((math.ceil(self.view.aspect), 1)))

    def __call__(self, image: Image.Image, known: Candidates) -> PreparedImage:
        """Cut an RGB image into regions, and render the regions.

        `known` are the boxes of the image, in pixels, that a file or a detector gives. `known` is ignored if
        `proposals` is `grid` or `selective-search`, because the boxes are computed from the image in these cases.
        """
        if self.proposals == "grid":
            known = propose_windows(image.size)
        elif self.proposals == "selective-search":
            known = search_selectively(np.asarray(image))
        regions, counts = select(known, image.size, self.selection)
        return PreparedImage(regions, self.view.render(image, regions.boxes), image.size, counts)

    @classmethod
    def from_settings(cls, settings: Settings, preprocessing: Preprocessing) -> "Cutting":
        """Return the cutting that the section `regions` of a configuration defines, for a network with
        `preprocessing`."""
        crops = Crops(settings["crop_side"] or preprocessing.side, settings["context"], preprocessing.mean)
        maps = WholeImages(MAP_SIDE, MAP_STEP, MAP_ASPECT)
        count = CLASSIFIED_REGIONS if settings.get("score") == "classifier" else settings["count"]
        return cls(
            settings["proposals"],
            Selection(settings["iou"], count, settings["fill"]),
            crops if settings["features"] == "crops" else maps,
        )


@dataclass(frozen=True)
class Preparation:
    """Function that opens the image of a request and cuts it into regions. The object can be pickled."""

    reader: PhotographReader
    cutting: Cutting

    def open(self, photograph: Photograph) -> np.ndarray:
        """Return the pixels (height, width, 3) uint8 of a whole image. Raises InputError if the image is unreadable."""
        return np.array(self.reader.open(photograph))

    def __call__(self, request: Request) -> PreparedImage:
        """Return the prepared image of a request. Raises InputError if the image cannot be read."""
        return self.cutting(self.reader.open(request.photograph), request.known)


POSITIVES = 1
"""Number of sampled regions per image that show an object. R-CNN has 32 in a batch of 32 images."""
BACKGROUND = 3
"""Number of sampled regions per image that show the background. R-CNN has 96 in a batch of 32 images."""
MIN_OBJECT_OVERLAP = 0.5
"""Smallest overlap (intersection over union) of a region that shows an object with the box of the object."""
TRIES = 20
"""Number of random boxes that are drawn for each sampled region. The first boxes that are suitable are used."""
JITTER = 0.25
"""Largest shift of each side of a random region from the same side of its object, as a share of the object's width or
height."""
MIN_BACKGROUND_SIDE = 0.1
"""Smallest side of a background region, as a share of the image's side."""


class LabelledImage(NamedTuple):
    """An image with the boxes (n, 4) of its objects in pixels, and their classes (n,), which are numbered from 1."""

    photograph: Photograph
    boxes: np.ndarray
    classes: np.ndarray


class RegionSample(NamedTuple):
    """n regions of one or more images: `pixels` (n, side, side, 3) uint8 and `classes` (n,) int64. Class 0 is the
    background."""

    pixels: np.ndarray
    classes: np.ndarray


@dataclass(frozen=True)
class RegionSampler:
    """Function that samples regions of a labelled image for training, as `sample_regions` describes.

    `reader` opens the image, and `crops` renders the regions. The object can be pickled.
    """

    reader: PhotographReader
    crops: Crops
    seed: int

    def __call__(self, item: tuple[int, LabelledImage]) -> RegionSample:
        """Sample regions of an image. Each region is mirrored with probability 1/2.

        `item` is a pair of a number and an image. The number and the seed determine the regions, so each call in a
        training must have a different number. Raises InputError if the image cannot be read.
        """
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
    """Sample boxes (n, 4) in an image of `size` (width, height), and return them with their classes (n,).

    `boxes` (m, 4) and `classes` (m,), numbered from 1, are the objects in the image. There must be at least one object.
    All boxes are x1, y1, x2, y2 in pixels. The result has POSITIVES boxes near objects, followed by BACKGROUND boxes of
    the background (class 0). There are fewer boxes of the background if large objects leave too little room.
    """
    chosen = rng.integers(len(boxes), size=POSITIVES)
    positives = [_near(boxes[row], size, rng) for row in chosen]
    low = rng.random((TRIES * BACKGROUND, 2))
    sides = MIN_BACKGROUND_SIDE + (1 - MIN_BACKGROUND_SIDE) * rng.random(low.shape) ** 2
    corners = low * (1 - sides) * size
    windows = np.hstack([corners, corners + sides * size])
    background = windows[overlaps(windows, boxes).max(axis=1) < MIN_OBJECT_OVERLAP][:BACKGROUND]
    labels = np.concatenate([classes[chosen], np.zeros(len(background), np.int64)])
    return np.concatenate([positives, background]), labels


def _near(box: np.ndarray, size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Return a random box in an image of `size` (width, height) whose intersection over union with `box` is at least
    MIN_OBJECT_OVERLAP.

    Return `box` itself if all of TRIES random boxes have a smaller overlap. Boxes are x1, y1, x2, y2 in pixels.
    """
    sides = np.tile(box[2:] - box[:2], 2)
    tries = np.clip(box + sides * rng.uniform(-JITTER, JITTER, (TRIES, 4)), 0, np.tile(size, 2))
    good = np.flatnonzero(overlaps(tries, box[None])[:, 0] >= MIN_OBJECT_OVERLAP)
    return tries[good[0]] if len(good) else box


def schedule_images(images: int, per_batch: int, iterations: int, seed: int) -> np.ndarray:
    """Return the numbers of the images for a training, from 0 to `images` - 1, as (iterations * per_batch,).

    Each epoch has every image once, in a random order. The last epoch is cut off at the length of the result.
    """
    wanted = iterations * per_batch
    rng = np.random.default_rng(seed)
    epochs = [rng.permutation(images) for _ in range(-(-wanted // images))]
    return np.concatenate(epochs)[:wanted]


def batch_samples(samples: Iterable[RegionSample | Failure], per_batch: int) -> Iterator[RegionSample]:
    """Yield one batch for every `per_batch` images, which joins the samples of these images.

    Failed images are left out of their batch, and the last batch can have fewer images. Raises InputError if all images
    of a batch failed.
    """
    samples = iter(samples)
    for batch in iter(lambda: list(islice(samples, per_batch)), []):
        good = [sample for sample in batch if isinstance(sample, RegionSample)]
        if not good:
            reason = next(sample.reason for sample in batch if isinstance(sample, Failure))
            raise InputError(
                f"None of the {len(batch)} photos of a batch could be read (the first reason: {reason}). Check that"
                " data_root is available. If photos have changed, run `jointspace stage ingest --run RUN` again."
            )
        yield RegionSample(np.concatenate([s.pixels for s in good]), np.concatenate([s.classes for s in good]))

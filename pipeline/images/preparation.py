"""A photograph to the regions that a network takes: proposals, selection, pixels."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from pipeline.images.boxes import Candidates
from pipeline.images.decode import ImageLimits
from pipeline.images.preprocess import Photograph, Preprocessing, open_photograph
from pipeline.images.proposals import GRID, LEAST_SCORE, LEAST_SIDE, Propose, Selection, proposer, select
from pipeline.images.warping import Crops, WholeImages

JUDGED = 60
"""Proposals of an image that the classifier judges, where regions are scored by it."""
MAP_SIDE = 384
"""Pixels of the shorter side of a whole image from whose map regions are pooled."""
MAP_STEP = 32
"""The longer side of a map is a multiple of this, so that images share a batch."""
MAP_ASPECT = 2.5
"""Longer over shorter side; more elongated images are squashed."""


class Request(NamedTuple):
    """An image whose regions are wanted, and its known boxes."""

    photograph: Photograph
    known: Candidates


class PreparedImage(NamedTuple):
    """An image ready for the network: its regions, the view's pixels, (width, height), and the counts of `select`.

    `seconds` is the time spent on it, of which `proposal_seconds` on its proposals.
    """

    regions: Candidates
    pixels: np.ndarray
    size: tuple[int, int]
    counts: Counter[str]
    seconds: float
    proposal_seconds: float


@dataclass(frozen=True)
class Cutting:
    """How an image is cut into regions: proposals, selection, and rendering by `view`."""

    propose: Propose
    selection: Selection
    view: Crops | WholeImages

    def __call__(self, image: Image.Image, known: Candidates) -> PreparedImage:
        """The regions of an RGB image with the `known` boxes."""
        started = time.perf_counter()
        regions, counts = select(self.propose(np.asarray(image), known), image.size, self.selection)
        proposed = time.perf_counter()
        pixels = self.view.render(image, regions.boxes)
        return PreparedImage(regions, pixels, image.size, counts, time.perf_counter() - started, proposed - started)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], preprocessing: Preprocessing) -> "Cutting":
        """The cutting that the section `regions` of a configuration defines, for a network with `preprocessing`."""
        count = JUDGED if settings["score"] == "classifier" else settings["count"]
        crops = Crops(settings["crop_side"] or preprocessing.side, settings["context"], preprocessing.mean)
        maps = WholeImages(MAP_SIDE, MAP_STEP, MAP_ASPECT)
        return cls(
            proposer(settings["proposals"], GRID),
            Selection(LEAST_SCORE, LEAST_SIDE, settings["iou"], count, settings["fill"], GRID),
            crops if settings["features"] == "crops" else maps,
        )


@dataclass(frozen=True)
class Preparation:
    """`preparation(request)` opens an image and cuts it into regions. Can be pickled."""

    read: Callable[..., bytes]
    limits: ImageLimits
    cutting: Cutting

    def open(self, photograph: Photograph) -> np.ndarray:
        """(height, width, 3) uint8 of a whole image. Raises InputError saying what is wrong with it."""
        return np.array(open_photograph(self.read, self.limits, photograph))

    def __call__(self, request: Request) -> PreparedImage:
        """Raises InputError saying what is wrong with the image."""
        started = time.perf_counter()
        image = open_photograph(self.read, self.limits, request.photograph)
        opened = time.perf_counter() - started
        prepared = self.cutting(image, request.known)
        return prepared._replace(seconds=prepared.seconds + opened)

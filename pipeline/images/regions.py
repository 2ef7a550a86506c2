"""The features of images' regions: from what was cut out of photographs to (regions, dim) for each image."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from pipeline.images.boxes import NONE, Candidates
from pipeline.images.classifier import Classifier, rescore
from pipeline.images.extraction import ExtractionPlan, Extractor
from pipeline.images.maps import region_encoder
from pipeline.images.networks import NetworkEncoder
from pipeline.images.preparation import PreparedImage
from pipeline.images.warping import Crops, WholeImages
from pipeline.workers import Failure


class DescribedRegions(NamedTuple):
    """Regions of some images, one image after another: `features` (total, dim) float32, `boxes` (total, 4), `scores`
    (total,), and `lengths` (n,) of the images, 0 for those whose number `faults` names with its reason.

    `counts` are `select`'s of all, `proposal_share` is that of the proposals in the work before the network.
    """

    features: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    lengths: np.ndarray
    faults: dict[int, str]
    counts: Counter[str]
    proposal_share: float

    def names(self, images: Sequence[str]) -> list[str]:
        """For each row the name of its image, of which `images` are all."""
        return np.repeat(np.asarray(images, object), self.lengths).tolist()

    def arrays(self, stored: np.ndarray) -> dict[str, np.ndarray]:
        """What a shard holds, with the features as they are `stored`."""
        return {"features": stored, "boxes": self.boxes, "scores": self.scores, "lengths": self.lengths}


def describe(
    images: Iterable[PreparedImage | Failure],
    extract: "RegionExtractor",
    classifier: Classifier | None,
    iou: float,
    count: int,
) -> DescribedRegions:
    """Every image's regions and their features; an image that could not be prepared has none and hinders no other.

    With a classifier, the best `count` of each image's regions by its judgement, of which none overlap by `iou`.
    """
    faults: dict[int, str] = {}
    places: list[int] = []
    regions: list[Candidates] = []
    counts: Counter[str] = Counter()
    seconds = [1e-9, 0.0]

    def usable() -> Iterator[PreparedImage]:
        for place, image in enumerate(images):
            if isinstance(image, Failure):
                faults[place] = image.reason
                continue
            places.append(place)
            regions.append(image.regions)
            counts.update(image.counts)
            seconds[0] += image.seconds
            seconds[1] += image.proposal_seconds
            yield image

    features = extract(usable())
    finished = list(zip(regions, features, strict=True))
    if classifier is not None:
        finished = [rescore(*pair, classifier, iou, count) for pair in finished]
    lengths = np.zeros(len(places) + len(faults), np.int64)
    lengths[places] = [len(part.scores) for part, _ in finished]
    return DescribedRegions(
        np.concatenate([rows for _, rows in finished] or [np.empty((0, 0), np.float32)]),
        np.concatenate([part.boxes for part, _ in finished] or [NONE.boxes]),
        np.concatenate([part.scores for part, _ in finished] or [NONE.scores]),
        lengths,
        faults,
        counts,
        seconds[1] / seconds[0],
    )


class RegionExtractor:
    """An encoder made ready by a plan, for the regions of images that `view` has rendered."""

    def __init__(self, encoder: NetworkEncoder, plan: ExtractionPlan, view: Crops | WholeImages) -> None:
        by_map = isinstance(view, WholeImages)
        self.extractor = Extractor(region_encoder(encoder) if by_map else encoder, plan)
        self._describe = self._describe_maps if by_map else self._describe_crops
        self._crop_pixels = encoder.spec.preprocessing.side**2

    def __call__(self, images: Iterable[PreparedImage]) -> list[np.ndarray]:
        """The features (regions, dim) float32 of each image. `images` are drawn as the network needs them."""
        return self._describe(images)

    def _describe_crops(self, images: Iterable[PreparedImage]) -> list[np.ndarray]:
        """Batches are of crops, whichever images they are of."""
        counts = []

        def crops() -> Iterator[np.ndarray]:
            for image in images:
                counts.append(len(image.pixels))
                yield from image.pixels

        blocks = list(self.extractor(crops()))
        return np.split(np.concatenate(blocks), np.cumsum(counts)[:-1]) if blocks else []

    def _describe_maps(self, images: Iterable[PreparedImage]) -> list[np.ndarray]:
        """Batches are of images of the same size, whichever order they come in."""
        under_way: deque[list[tuple[int, int]]] = deque()
        features: dict[int, np.ndarray] = {}
        for block in self.extractor.run(self._buckets(images, under_way)):
            for (place, count), rows in zip(under_way.popleft(), block, strict=True):
                features[place] = rows[:count]
        return [features[place] for place in sorted(features)]

    def _buckets(
        self, images: Iterable[PreparedImage], under_way: deque[list[tuple[int, int]]]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Pixels and boxes of images of one size; to `under_way` go their places and how many boxes are theirs."""
        buckets: dict[tuple[int, ...], list[tuple[int, PreparedImage]]] = {}

        def close(bucket: list[tuple[int, PreparedImage]]) -> tuple[torch.Tensor, torch.Tensor]:
            under_way.append([(place, len(image.regions.boxes)) for place, image in bucket])
            pixels = torch.from_numpy(np.stack([image.pixels for _, image in bucket]))
            return pixels, _pad_boxes([image for _, image in bucket])

        for place, image in enumerate(images):
            shape = image.pixels.shape
            bucket = buckets.setdefault(shape, [])
            bucket.append((place, image))
            full = self.extractor.plan.batch_size * self._crop_pixels // (shape[0] * shape[1])
            if len(bucket) >= full:
                yield close(buckets.pop(shape))
        for bucket in buckets.values():
            yield close(bucket)


def _pad_boxes(images: list[PreparedImage]) -> torch.Tensor:
    """(n, k, 4) float32 in [0, 1] of each image's sides; where an image has fewer than k, the whole image."""
    boxes = np.zeros((len(images), max(len(image.regions.boxes) for image in images), 4), np.float32)
    boxes[:, :, 2:] = 1
    for row, image in zip(boxes, images, strict=True):
        row[: len(image.regions.boxes)] = image.regions.boxes / np.tile(np.float32(image.size), 2)
    return torch.from_numpy(boxes)

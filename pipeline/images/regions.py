"""The features of images' regions: from prepared images to (regions, dim) for each image."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from pipeline.images.boxes import NONE, Candidates
from pipeline.images.extraction import ExtractionPlan, Extractor
from pipeline.images.maps import region_encoder
from pipeline.images.networks import NetworkEncoder
from pipeline.images.preparation import PreparedImage
from pipeline.images.region_features import Classifier, rescore
from pipeline.images.warping import Crops, WholeImages
from pipeline.workers import Failure


class DescribedRegions(NamedTuple):
    """Regions of n images, image by image: `features` (total, dim) float32, `boxes` (total, 4), `scores` (total,), and
    `lengths` (n,), 0 for the images in `faults` (number -> reason).

    `counts` sums those of `select`; `proposal_share` is the proposals' share of the time before the network.
    """

    features: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    lengths: np.ndarray
    faults: dict[int, str]
    counts: Counter[str]
    proposal_share: float

    def names(self, images: Sequence[str]) -> list[str]:
        """The name of each row's image; `images` (n,) are all names."""
        return np.repeat(np.asarray(images, object), self.lengths).tolist()

    def arrays(self, stored: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays of a shard, with the features as `stored`."""
        return {"features": stored, "boxes": self.boxes, "scores": self.scores, "lengths": self.lengths}


def describe(
    images: Iterable[PreparedImage | Failure],
    extract: "RegionExtractor",
    classifier: Classifier | None,
    iou: float,
    count: int,
) -> DescribedRegions:
    """Every image's regions and their features; an image that could not be prepared has none.

    With a classifier, only the best `count` regions of each image after rescoring and suppression at `iou`.
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
    """An encoder prepared for a plan, for regions rendered by `view`."""

    def __init__(self, encoder: NetworkEncoder, plan: ExtractionPlan, view: Crops | WholeImages) -> None:
        self._by_map = isinstance(view, WholeImages)
        self.extractor = Extractor(region_encoder(encoder) if self._by_map else encoder, plan)
        self._crop_pixels = encoder.spec.preprocessing.side**2

    def __call__(self, images: Iterable[PreparedImage]) -> list[np.ndarray]:
        """The features (regions, dim) float32 of each image; `images` are read as the network needs them.

        A batch has whole images of the same size, in any order, or crops from one or more images.
        """
        if self._by_map:
            under_way: deque[list[tuple[int, int]]] = deque()
            features: dict[int, np.ndarray] = {}
            for block in self.extractor.run(self._buckets(images, under_way)):
                for (place, count), rows in zip(under_way.popleft(), block, strict=True):
                    features[place] = rows[:count]
            return [features[place] for place in sorted(features)]
        counts = []

        def crops() -> Iterator[np.ndarray]:
            for image in images:
                counts.append(len(image.pixels))
                yield from image.pixels

        blocks = list(self.extractor(crops()))
        return np.split(np.concatenate(blocks), np.cumsum(counts)[:-1]) if blocks else []

    def _buckets(
        self, images: Iterable[PreparedImage], under_way: deque[list[tuple[int, int]]]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Pixels and boxes of images of one size; appends their positions and numbers of boxes to `under_way`."""
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
    """(n, k, 4) float32, as shares of each image's sides, padded with the whole image."""
    boxes = np.zeros((len(images), max(len(image.regions.boxes) for image in images), 4), np.float32)
    boxes[:, :, 2:] = 1
    for row, image in zip(boxes, images, strict=True):
        row[: len(image.regions.boxes)] = image.regions.boxes / np.tile(np.float32(image.size), 2)
    return torch.from_numpy(boxes)

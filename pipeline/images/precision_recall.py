"""Average precision of object detection, as in PASCAL VOC since 2010."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import InputError
from pipeline.images.boxes import Candidates, overlaps, suppress
from pipeline.images.region_features import Classifier
from pipeline.images.regions import DescribedRegions
from pipeline.images.sampling import LabelledImage

HIT = 0.5
"""Least intersection over union of a detection and its object."""
WEAKEST = 0.01
"""Least probability of a detection."""


class Judged(NamedTuple):
    """One image: candidate `boxes` (n, 4) with `probabilities` (n, 1 + classes; 0 is the background), and its objects:
    boxes `truth` (m, 4) of `classes` (m,), from 1."""

    boxes: np.ndarray
    probabilities: np.ndarray
    truth: np.ndarray
    classes: np.ndarray


class Precision(NamedTuple):
    """`mean` of the `average` precisions (classes,), in [0, 1], NaN for classes without objects; `reachable` is the
    share of objects that some candidate overlaps enough, an upper bound on recall."""

    mean: float
    average: np.ndarray
    reachable: float

    def to_dict(self, labels: Sequence[str]) -> dict[str, Any]:
        """As JSON, with null for NaN."""
        pairs = zip(labels, self.average.tolist(), strict=True)
        named = {label: None if math.isnan(value) else value for label, value in pairs}
        return {"mean_average_precision": self.mean, "reachable": self.reachable, "average_precision": named}


def judge_regions(
    described: DescribedRegions, classifier: Classifier, images: Sequence[LabelledImage], iou: float
) -> Precision:
    """The precision of `classifier` on the regions of `images`, against their labelled boxes."""
    ends = np.cumsum(described.lengths)
    probabilities = classifier.probabilities(described.features) if len(described.features) else None
    judged = []
    for image, start, stop in zip(images, ends - described.lengths, ends, strict=True):
        if stop > start:
            judged.append(Judged(described.boxes[start:stop], probabilities[start:stop], image.boxes, image.classes))
    if not judged:
        raise InputError("none of the held-out images with boxes could be read; finetune is judged by the split dev")
    return judge_detections(judged, iou)


def judge_detections(images: Sequence[Judged], iou: float) -> Precision:
    """Average precision of each class, after non-maximum suppression at `iou` within the class."""
    classes = images[0].probabilities.shape[1] - 1
    average = np.array([_average_precision(images, label, iou) for label in range(1, classes + 1)])
    reached = [overlaps(image.truth, image.boxes).max(axis=1, initial=0) >= HIT for image in images]
    known = average[~np.isnan(average)]
    return Precision(float(known.mean()) if len(known) else 0.0, average, float(np.concatenate(reached).mean()))


def _average_precision(images: Sequence[Judged], label: int, iou: float) -> float:
    scores, hits, objects = [], [], 0
    for image in images:
        truth = image.truth[image.classes == label]
        objects += len(truth)
        probable = np.flatnonzero(image.probabilities[:, label] >= WEAKEST)
        found = Candidates(image.boxes[probable], image.probabilities[probable, label])
        found = found.take(suppress(found, iou, len(probable)))
        scores.append(found.scores)
        hits.append(match(found.boxes, truth))
    if not objects:
        return float("nan")
    order = np.argsort(-np.concatenate(scores), kind="stable")
    return interpolated_precision(np.concatenate(hits)[order], objects)


def match(boxes: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """(n,): whether each detection, best first, finds an object that no better detection found."""
    overlap = overlaps(boxes, truth)
    hits, free = np.zeros(len(boxes), bool), np.ones(len(truth), bool)
    for row in range(len(boxes) if len(truth) else 0):
        best = overlap[row].argmax()
        hits[row] = overlap[row, best] >= HIT and free[best]
        free[best] &= not hits[row]
    return hits


def interpolated_precision(hits: np.ndarray, objects: int) -> float:
    """The area under the interpolated precision-recall curve of detections `hits` (n,), best first, of `objects`."""
    found = np.cumsum(hits)
    precision = found / np.arange(1, len(hits) + 1)
    best_from_here = np.maximum.accumulate(precision[::-1])[::-1]
    return float(best_from_here[hits].sum() / objects)

"""How well objects are found: average precision, as the PASCAL VOC challenge has it since 2010."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import InputError
from pipeline.images.boxes import Candidates, overlaps, suppress
from pipeline.images.classifier import Classifier
from pipeline.images.regions import DescribedRegions
from pipeline.images.sampling import LabelledImage

HIT = 0.5
"""Least overlap of a detection with the object that it finds."""
WEAKEST = 0.01
"""Detections of lower probability are not looked at."""


class Judged(NamedTuple):
    """One image: candidates `boxes` (n, 4) with the `probabilities` (n, 1 + classes) of showing what (0: nothing), and
    what there is: boxes `truth` (m, 4) of `classes` (m,), from 1."""

    boxes: np.ndarray
    probabilities: np.ndarray
    truth: np.ndarray
    classes: np.ndarray


class Precision(NamedTuple):
    """`mean` of the `average` precisions (classes,), in [0, 1], NaN for classes that are nowhere; `reachable` is the
    share of objects that some candidate overlaps enough, which no classifier can exceed in recall."""

    mean: float
    average: np.ndarray
    reachable: float

    def to_dict(self, labels: Sequence[str]) -> dict[str, Any]:
        """As JSON; classes that are nowhere have null."""
        average = [None if math.isnan(value) else value for value in self.average.tolist()]
        named = dict(zip(labels, average, strict=True))
        return {"mean_average_precision": self.mean, "reachable": self.reachable, "average_precision": named}


def judge_regions(
    described: DescribedRegions, classifier: Classifier, images: Sequence[LabelledImage], iou: float
) -> Precision:
    """What `classifier` makes of the regions of `images`, against their labelled boxes."""
    ends = np.cumsum(described.lengths)
    probabilities = classifier.probabilities(described.features) if len(described.features) else None
    judged = []
    for image, start, stop in zip(images, ends - described.lengths, ends, strict=True):
        if stop > start:
            judged.append(Judged(described.boxes[start:stop], probabilities[start:stop], image.boxes, image.classes))
    if not judged:
        raise InputError("none of the held-out images with boxes could be read; choose another finetune.held_out")
    return judge_detections(judged, iou)


def judge_detections(images: Sequence[Judged], iou: float) -> Precision:
    """Average precision of each class, after suppression at `iou` of the weaker of two detections of a class."""
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
    """(n,) whether each detection, best first, finds an object that no better one has found."""
    overlap = overlaps(boxes, truth)
    hits, free = np.zeros(len(boxes), bool), np.ones(len(truth), bool)
    for row in range(len(boxes) if len(truth) else 0):
        best = overlap[row].argmax()
        hits[row] = overlap[row, best] >= HIT and free[best]
        free[best] &= not hits[row]
    return hits


def interpolated_precision(hits: np.ndarray, objects: int) -> float:
    """The area under precision against recall, of detections `hits` (n,), best first, where there are `objects`."""
    found = np.cumsum(hits)
    precision = found / np.arange(1, len(hits) + 1)
    best_from_here = np.maximum.accumulate(precision[::-1])[::-1]
    return float(best_from_here[hits].sum() / objects)

"""Scores of regions from a classifier of their features."""

from typing import NamedTuple

import numpy as np

from pipeline.images.boxes import Candidates, suppress


class Classifier(NamedTuple):
    """A linear classifier of features: `weight` (1 + classes, dim), `bias` (1 + classes,); row 0 is the background."""

    weight: np.ndarray
    bias: np.ndarray

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """(n, 1 + classes) of features (n, dim)."""
        logits = features @ self.weight.T + self.bias
        exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
        return exponents / exponents.sum(axis=1, keepdims=True)


def rescore(
    regions: Candidates, features: np.ndarray, classifier: Classifier, iou: float, count: int
) -> tuple[Candidates, np.ndarray]:
    """The best `count` regions by their highest foreground probability, after suppression, as in R-CNN.

    Region 0, the whole image, stays first and keeps its score.
    """
    scores = classifier.probabilities(features)[:, 1:].max(axis=1).astype(np.float32)
    scores[:1] = regions.scores[:1]
    parts = Candidates(regions.boxes[1:], scores[1:])
    rows = np.concatenate([[0], 1 + suppress(parts, iou, count)])
    return Candidates(regions.boxes[rows], scores[rows]), features[rows]

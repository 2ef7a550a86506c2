"""Ranks and recall where every score is given, not made from two vectors."""

import numpy as np

from pipeline.errors import InputError
from pipeline.metrics.ranks import Ranks
from pipeline.metrics.retrieval import CUTOFFS, Bootstrap, Retrieval, measure
from pipeline.precision import require_finite

ROWS = 256
"""Images whose scores are compared at once."""


def rank_scores(scores: np.ndarray, owners: np.ndarray) -> Ranks:
    """Ranks from `scores` (n, m) of n images by m sentences, where sentence j is of image `owners[j]`.

    Ties count against the model. Raises IntegrityError naming a row that is not finite, and InputError naming an image
    that has no sentence.
    """
    n, m = scores.shape
    require_finite("scores", "images", scores)
    if (without := np.bincount(owners, minlength=n) == 0).any():
        raise InputError(f"image row {without.argmax()} has no sentence; leave such images out of the evaluation")
    targets = scores[owners, np.arange(m)]
    best = np.full(n, -np.inf, scores.dtype)
    np.maximum.at(best, owners, targets)
    image_to_sentence, sentence_to_image = np.empty(n, np.int64), np.zeros(m, np.int64)
    for start in range(0, n, ROWS):
        block = scores[start : start + ROWS]
        image_to_sentence[start : start + ROWS] = (block >= best[start : start + ROWS, None]).sum(axis=1)
        sentence_to_image += (block >= targets).sum(axis=0)
    own_best = np.bincount(owners[targets == best[owners]], minlength=n)
    return Ranks(image_to_sentence - own_best + 1, sentence_to_image)


def evaluate_scores(scores: np.ndarray, owners: np.ndarray, bootstrap: Bootstrap) -> Retrieval:
    """Measure retrieval by `scores` (n, m), where sentence j is of image `owners[j]`. Raises as `rank_scores` does."""
    ranks = rank_scores(scores, owners)
    each = np.arange(len(scores))
    return Retrieval(
        measure(ranks.image_to_sentence, each, bootstrap), measure(ranks.sentence_to_image, owners, bootstrap)
    )


def recall_sum_of_scores(scores: np.ndarray, owners: np.ndarray) -> float:
    """The sum of recall@1, @5 and @10 of both directions in percent: 600 at best."""
    ranks = rank_scores(scores, owners)
    directions = (ranks.image_to_sentence, ranks.sentence_to_image)
    return float(sum(100 * np.mean(direction <= k) for direction in directions for k in CUTOFFS))

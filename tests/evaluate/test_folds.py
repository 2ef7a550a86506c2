"""The measures over folds of a split are compared with separate evaluations of each fold."""

from itertools import pairwise

import numpy as np
import pytest

from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import Bootstrap, evaluate, measure_folds, split_into_folds

PLAIN = Bootstrap(0, 0)
DIRECTIONS = ("image_to_sentence", "sentence_to_image")


def vectors(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw the vectors of n images and of one to four sentences per image, which are similar to the image. Return the
    vectors of the images, the vectors of the sentences, and the row of the image of each sentence."""
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(n), rng.integers(1, 5, n))
    images = rng.standard_normal((n, 6)).astype(np.float32)
    sentences = images[owners] + rng.standard_normal((len(owners), 6)).astype(np.float32)
    return images, sentences, owners


def test_the_mean_of_folds_is_the_mean_of_separate_evaluations() -> None:
    images, sentences, owners = vectors(53)
    folds = split_into_folds(owners, 5)
    ranks = [count_ranks(images[f.images], sentences[f.sentences], f.owners, "inner_product") for f in folds]
    found = measure_folds(folds, ranks, PLAIN)
    bounds = [0, 10, 21, 31, 42, 53]
    alone = []
    for first, last in pairwise(bounds):
        own = (owners >= first) & (owners < last)
        alone.append(
            evaluate(
                count_ranks(images[first:last], sentences[own], owners[own] - first, "inner_product"),
                owners[own] - first,
                PLAIN,
            )
        )
    for direction in DIRECTIONS:
        values = [one[direction] for one in alone]
        assert [{name: fold[direction][name] for name in values[0]} for fold in found["each_fold"]] == values
        for name in values[0]:
            mean = np.mean([value[name] for value in values])
            assert found["mean_of_folds"][direction][name] == pytest.approx(mean, rel=1e-12)

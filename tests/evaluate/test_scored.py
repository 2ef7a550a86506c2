"""Ranks from given scores against those from vectors, and against sorting."""

import numpy as np
import pytest

from pipeline.metrics import ranks as module
from pipeline.metrics.ranks import count_ranks, rank_scores
from pipeline.metrics.retrieval import Bootstrap, evaluate, recall_sum

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(-4, 5, (70, 6)).astype(np.float32)
OWNERS = np.concatenate([np.arange(70), RNG.integers(70, size=130)])
SENTENCES = (IMAGES[OWNERS] + RNG.integers(-4, 5, (200, 6))).astype(np.float32)
SCORES = IMAGES @ SENTENCES.T


def test_they_are_those_of_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", (16, 32))
    expected, found = count_ranks(IMAGES, SENTENCES, OWNERS, "inner_product"), rank_scores(SCORES, OWNERS)
    np.testing.assert_array_equal(found.image_to_sentence, expected.image_to_sentence)
    np.testing.assert_array_equal(found.sentence_to_image, expected.sentence_to_image)
    assert (np.bincount(found.sentence_to_image) > 1).any()
    assert recall_sum(rank_scores(SCORES, OWNERS)) == recall_sum(
        count_ranks(IMAGES, SENTENCES, OWNERS, "inner_product")
    )
    bootstrap = Bootstrap(20, 0)
    assert evaluate(rank_scores(SCORES, OWNERS), OWNERS, bootstrap) == evaluate(expected, OWNERS, bootstrap)

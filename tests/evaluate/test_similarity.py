"""Sentence similarity against plain loops."""

import numpy as np
import pytest

from pipeline.metrics.ranks import similarity_ranks


@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
def test_ranks_are_those_of_a_loop(metric: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((700, 6)).astype(np.float32)
    owners = rng.permutation(np.repeat(np.arange(175), 4))
    found = similarity_ranks(x, owners, metric)
    for j in range(0, 700, 7):
        score = x @ x[j] if metric == "inner_product" else -np.square(x - x[j]).sum(axis=1)
        same = (owners == owners[j]) & (np.arange(700) != j)
        assert found[j] == 1 + (score[owners != owners[j]] >= score[same].max()).sum()


def test_equal_sentences_of_other_images_count_against_the_model() -> None:
    x = np.ones((6, 3), np.float32) / np.float32(3) ** 0.5
    assert similarity_ranks(x, np.array([0, 0, 1, 1, 2, 2]), "inner_product").tolist() == [5] * 6

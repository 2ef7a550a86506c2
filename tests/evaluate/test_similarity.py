"""Sentence similarity and region-phrase measures against plain loops."""

import numpy as np
import pytest

from pipeline.errors import InputError
from pipeline.evaluate.phrases import judge_correspondences, overlap, rank_phrases
from pipeline.evaluate.similarity import similarity_ranks


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


def test_a_lonely_sentence_is_named() -> None:
    with pytest.raises(InputError, match="sentence row 2 is the only one"):
        similarity_ranks(np.eye(3, dtype=np.float32), np.array([0, 0, 1]), "inner_product")


def test_perfect_phrases_rank_first_and_random_ones_do_not() -> None:
    rng = np.random.default_rng(0)
    regions = rng.standard_normal((40, 16)).astype(np.float32)
    regions /= np.linalg.norm(regions, axis=1, keepdims=True)
    owners = np.repeat(np.arange(40), 3)
    perfect = rank_phrases(regions, regions[owners], owners)
    assert (perfect.recall_1, perfect.median_rank, perfect.n_regions, perfect.n_phrases) == (100, 1, 40, 120)
    noise = rng.standard_normal((120, 16)).astype(np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    assert 5 < rank_phrases(regions, noise, owners).median_rank < 60


def test_overlap_and_correspondences() -> None:
    box, half, apart = [0, 0, 10, 10], [0, 0, 10, 5], [20, 20, 30, 30]
    boxes = np.array([box, box, box, [5, 5, 5, 5]], float)
    assert overlap(boxes, np.array([box, half, apart, [5, 5, 5, 5]], float)).tolist() == [1, 0.5, 0, 0]
    chosen = np.array([box, box, box], float)
    gold, owners = np.array([apart, half, apart], float), np.array([0, 0, 1])
    assert judge_correspondences(chosen, gold, owners, 0.5).tolist() == [True, False, False]

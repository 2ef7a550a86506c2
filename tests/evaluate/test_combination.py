"""The weights of an ensemble are compared with a search over all weights, and joined vectors with sums of scores."""

import itertools

import numpy as np
import pytest

from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import recall_sum
from pipeline.models.linear.ensemble import choose_weights, join_vectors, judge_scores


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def make_members(seed: int, noises: tuple[float, ...]) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Draw the embeddings of 120 images with two sentences each by several models, one model per level of noise in
    `noises`.

    The models have different numbers of dimensions. Return the vectors of the images for each model, the vectors of the
    sentences for each model, and the row of the image of each sentence.
    """
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(120), 2)
    images = []
    sentences = []
    for noise, dim in zip(noises, (6, 9, 7), strict=False):
        hidden = rng.standard_normal((120, dim))
        images.append(unit(hidden + noise * rng.standard_normal((120, dim))))
        sentences.append(unit(hidden[owners] + noise * rng.standard_normal((240, dim))))
    return images, sentences, owners


def test_scores_of_joined_vectors_are_the_weighted_sum_and_their_length_is_one() -> None:
    images, sentences, owners = make_members(1, (0.8, 1.2, 1.0))
    weights = (0.5, 0.3, 0.2)
    left = join_vectors(images, weights)
    right = join_vectors(sentences, weights)
    expected = sum(w * a.astype(float) @ b.T.astype(float) for w, a, b in zip(weights, images, sentences, strict=True))
    np.testing.assert_allclose(left @ right.T, expected, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(left, axis=1), 1, atol=1e-6)
    scores = [a @ b.T for a, b in zip(images, sentences, strict=True)]
    assert judge_scores(scores, owners)(weights) == recall_sum(count_ranks(left, right, owners, "inner_product"))


def test_the_chosen_weights_are_the_best_of_the_grid_if_there_is_one_maximum() -> None:
    grid = (0, 0.25, 0.5, 1, 2)
    summit = np.array([2, 0.25, 1]) / 3.25

    def judge(weights: tuple[float, ...]) -> float:
        return -float(np.square(np.array(weights) - summit).sum())

    chosen = choose_weights(judge, 3, grid)
    np.testing.assert_allclose(chosen.values, summit, atol=1e-9)
    every = [trial for trial in itertools.product(grid, repeat=3) if any(trial)]
    assert chosen.judged == pytest.approx(max(judge(tuple(np.divide(t, sum(t)))) for t in every), abs=1e-12)


def test_a_member_of_pure_noise_gets_almost_no_weight() -> None:
    images, sentences, owners = make_members(3, (0.8, 0.8, 100.0))
    judge = judge_scores([a @ b.T for a, b in zip(images, sentences, strict=True)], owners)
    chosen = choose_weights(judge, 3, (0, 0.5, 1, 2))
    assert chosen.values[2] < 0.1 and min(chosen.values[:2]) > 0.2


class BoundedGrid(tuple):
    """A grid of weights that can be iterated fewer than 50 times, so that an endless search fails."""

    looks = 0

    def __iter__(self):
        self.looks += 1
        assert self.looks < 50, "the search does not end"
        return super().__iter__()


def test_the_first_of_equally_good_weights_is_kept() -> None:
    judged = []
    chosen = choose_weights(lambda weights: judged.append(weights) or 1.0, 2, BoundedGrid((0, 0.5, 1, 2)))
    assert chosen.values == (0.5, 0.5) and chosen.judged == 1 and chosen.trials == len(judged) == len(set(judged))
    # The second member alone is as good as both members together, but the search tries both together first.
    assert choose_weights(lambda weights: float(weights[1] >= 0.5), 2, BoundedGrid((0, 1))).values == (0.5, 0.5)

"""Joined sets against the weighted sum of the members' own scores."""

import numpy as np
import pytest

from pipeline.metrics.joining import join_images, join_sentences, joint_rule
from pipeline.multivectors import MultiVectors, ScoreRule


def make_sets(rng: np.random.Generator, lengths: np.ndarray, dim: int, wide: int | None) -> MultiVectors:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    whole = rng.standard_normal((len(lengths), wide)).astype(np.float32) if wide else None
    return MultiVectors(rng.standard_normal((offsets[-1], dim)).astype(np.float32), offsets, whole)


RULES = [
    [ScoreRule("mean-words", 1.0)],
    [ScoreRule("words", 0)],
    [ScoreRule("words", 0.3), ScoreRule("mean-words", 0)],
    [ScoreRule("positive", 0), ScoreRule("positive", 2.0)],
]


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("vectors", [0, 2])
def test_joined_sets_score_the_weighted_sum_of_all_members(rules: list[ScoreRule], vectors: int) -> None:
    rng = np.random.default_rng(0)
    regions, words = rng.integers(1, 6, 7), rng.integers(1, 9, 15)
    images: list = [rng.standard_normal((7, 4 + k)).astype(np.float32) for k in range(vectors)]
    sentences: list = [rng.standard_normal((15, 4 + k)).astype(np.float32) for k in range(vectors)]
    weights = rng.random(vectors + len(rules)).tolist()
    expected = sum((w * x @ y.T for w, x, y in zip(weights, images, sentences, strict=False)), np.zeros((7, 15)))
    each = [None] * vectors + rules
    for k, rule in enumerate(rules):
        wide = 3 if rule.global_weight else None
        images.append(make_sets(rng, regions, 5 + k, wide))
        sentences.append(make_sets(rng, words, 5 + k, wide))
        expected = expected + weights[vectors + k] * np.asarray(score(images[-1], sentences[-1], rule))
    joined = join_images(images, weights, each), join_sentences(sentences, weights, each)
    np.testing.assert_allclose(score(*joined, joint_rule(rules)), expected, atol=1e-4)
    np.testing.assert_array_equal(joined[0].lengths, regions)
    np.testing.assert_array_equal(joined[1].lengths, len(rules) * words)


def score(images: MultiVectors, sentences: MultiVectors, rule: ScoreRule) -> np.ndarray:
    """By a plain loop over pairs, in float64."""
    scores = np.zeros((len(images), len(sentences)))
    for i in range(len(images)):
        for j in range(len(sentences)):
            v, s = (x.between(k, k + 1).vectors.astype(float) for x, k in ((images, i), (sentences, j)))
            products = v @ s.T
            total = np.maximum(products, 0).sum() if rule.sum == "positive" else products.max(axis=0).sum()
            scores[i, j] = total / (len(s) if rule.sum == "mean-words" else 1)
            if rule.global_weight:
                scores[i, j] += rule.global_weight * float(images.globals[i].astype(float) @ sentences.globals[j])
    return scores

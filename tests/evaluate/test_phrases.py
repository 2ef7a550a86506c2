"""Measures of phrases and regions are compared with plain loops, and with the known answers of synthetic data."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.errors import UsageError
from pipeline.metrics.phrases import (
    Gold,
    PhraseSet,
    RegionSet,
    best_within,
    judge_pairs,
    measure_phrases,
    named_boxes,
    overlap,
    pairs_within,
    rank_among_all,
    rank_within,
    score_pairs,
)
from pipeline.metrics.retrieval import Bootstrap
from pipeline.models.neural.hmlstm import match_regions

IMAGES = 30
KINDS = 12


def unit(rng: np.random.Generator, n: int, dim: int = 8) -> np.ndarray:
    x = rng.standard_normal((n, dim)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_labels_match_phrases_of_the_same_image_by_head_or_by_words() -> None:
    texts = ["a red dog", "two hounds", "two dogs", "a big cat"]
    heads = ["dog", "hounds", "dogs", "cat"]
    names = {"dog": frozenset({"dog", "hounds"}), "17": frozenset({"a big cat", "cats"})}
    labels = ["dog", "17", "dogs", "dog"]
    box_images = np.array([3, 4, 4, 5])
    found = named_boxes(texts, heads, np.array([3, 3, 4, 4]), labels, box_images, names)
    assert found.tolist() == [[0, 0], [1, 0], [2, 2], [3, 1]]
    assert named_boxes(["a dog"], ["dog"], np.array([9]), labels, box_images, names).shape == (0, 2)


def test_pairs_are_within_images_and_right_if_the_boxes_overlap() -> None:
    rng = np.random.default_rng(0)
    images = np.array([2, 2, 5, 7, 9])
    region_images = np.array([2, 2, 2, 5, 6, 9, 9])
    pairs = pairs_within(images, region_images)
    assert pairs.tolist() == [[i, j] for i in range(5) for j in range(7) if images[i] == region_images[j]]
    corners = rng.uniform(0, 10, (2, 11, 2))
    boxes = np.concatenate([corners.min(axis=0), corners.max(axis=0)], axis=1)
    boxes, gold = boxes[:7], boxes[7:]
    named = np.array([[0, 0], [0, 1], [2, 2], [3, 3], [4, 1]])
    right = judge_pairs(pairs, boxes, named, gold, 0.05)
    assert 0 < right.sum() < len(right)
    for (phrase, region), judged in zip(pairs, right, strict=True):
        own = [overlap(boxes[[region]], gold[[g]])[0] for p, g in named if p == phrase]
        assert judged == (max(own, default=0) >= 0.05)


def test_ranks_equal_those_of_plain_loops() -> None:
    rng = np.random.default_rng(1)
    a = unit(rng, 300)
    b = unit(rng, 90)
    scores = a.astype(float) @ b.T
    together = np.unique(rng.integers(0, [290, 90], (500, 2)), axis=0)
    ranks = rank_among_all(a, b, together)
    right = np.zeros((300, 90), bool)
    right[tuple(together.T)] = True
    for i in range(300):
        wrong = scores[i][~right[i]]
        assert ranks[i] == (1 + (wrong >= scores[i][right[i]].max()).sum() if right[i].any() else 0)
    pairs = np.unique(rng.integers(0, [300, 90], (2000, 2)), axis=0)
    chosen = rng.random(len(pairs)) < 0.3
    near = rank_within(score_pairs(pairs, a, b), chosen, pairs[:, 1], 90)
    for j in range(90):
        own = pairs[:, 1] == j
        values = scores[pairs[:, 0], j]
        best = values[own & chosen].max(initial=-np.inf)
        assert near[j] == (1 + (values[own & ~chosen] >= best).sum() if (own & chosen).any() else 0)


def test_ties_count_against_the_model() -> None:
    a = np.ones((2, 3), np.float32)
    b = np.ones((5, 3), np.float32)
    assert rank_among_all(a, b, np.array([[0, 0], [0, 1], [1, 4]])).tolist() == [4, 5]
    scores = score_pairs(np.array([[0, 0], [0, 1], [0, 2]]), a, b)
    assert rank_within(scores, np.array([False, True, False]), np.zeros(3, int), 2).tolist() == [3, 0]


def test_best_regions_equal_those_that_training_chooses() -> None:
    rng = np.random.default_rng(2)
    offsets = np.array([0, 4, 6, 13])
    images = np.array([0, 2, 1, 0, 2])
    phrases = unit(rng, 5)
    regions = unit(rng, 13)
    chosen, confidence = match_regions(torch.from_numpy(phrases), images, torch.from_numpy(regions), offsets)
    parts = np.setdiff1d(np.arange(13), offsets[:-1])
    owners = np.repeat(np.arange(3), np.diff(offsets))
    best, similarity = best_within(images, phrases, owners[parts], regions[parts])
    np.testing.assert_array_equal(parts[best] - offsets[:-1][images], chosen)
    np.testing.assert_allclose(similarity, confidence, atol=1e-6)
    assert best_within(np.array([8]), phrases[:1], owners[parts], regions[parts])[0].tolist() == [-1]


def make_synthetic_set(seed: int) -> tuple[PhraseSet, RegionSet, Gold]:
    """Make the phrases, regions and gold boxes of IMAGES images. Each image shows three things of different kinds, out
    of KINDS kinds.

    Each thing has a gold box, which is also a region, and two phrases that name the thing. The vector of a phrase
    equals the vector of the region of its thing.
    """
    rng = np.random.default_rng(seed)
    shown = np.stack([rng.permutation(KINDS)[:3] for _ in range(IMAGES)])
    looks = unit(rng, KINDS, 16)
    images = np.repeat(np.arange(IMAGES), 3)
    corners = np.tile([[0, 0], [20, 0], [0, 20]], (IMAGES, 1))
    boxes = np.concatenate([corners, corners + 10], axis=1).astype(np.float32)
    heads = [f"kind{kind}" for kind in np.repeat(shown, 2, axis=1).ravel()]
    phrases = PhraseSet(
        [f"a {head}" for head in heads], heads, np.repeat(np.arange(IMAGES), 6), looks[np.repeat(shown, 2)]
    )
    gold = Gold(images, boxes, [f"kind{kind}" for kind in shown.ravel()], {})
    return phrases, RegionSet(images, boxes, looks[shown.ravel()]), gold


def test_phrases_without_a_right_region_count_as_wrong_and_labels_without_phrases_are_refused() -> None:
    phrases, regions, gold = make_synthetic_set(2)
    away = replace(gold, boxes=gold.boxes + np.where(gold.images < 10, 1000, 0)[:, None])
    found, ranks = measure_phrases(phrases, regions, away, 0.5, Bootstrap(0, 0))
    assert len(ranks["phrase_to_region.image"]) == 120  # Phrases without a right region have no rank.
    assert found["n_without_right_region"] == 60
    assert found["correspondence"]["right"] == pytest.approx(200 / 3)
    with pytest.raises(UsageError, match=r"Correct phrases\.names"):
        measure_phrases(phrases, regions, replace(gold, labels=["thing"] * 90), 0.5, Bootstrap(0, 0))

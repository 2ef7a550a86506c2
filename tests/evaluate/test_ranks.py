"""Ranks are compared with a naive reference that sorts all scores, also for tied scores and for both metrics."""

from functools import partial

import numpy as np
import pytest

from pipeline.errors import InputError, IntegrityError
from pipeline.metrics.ranks import count_ranks, rank_scores


def naive_ranks(scores: np.ndarray, owners: np.ndarray) -> tuple[list[int], list[int]]:
    """Compute the ranks of n images and m sentences from `scores` (n, m) with one stable sort per query.

    The right item of a query comes after all other items with the same score. Return the ranks for the images as
    queries, and the ranks for the sentences as queries.
    """
    to_sentence = []
    to_image = []
    for image, row in enumerate(scores):
        best = max(row[owners == image])
        # The target is last, so that a stable sort puts it after equal scores.
        gallery = np.append(row[owners != image], best)
        order = np.argsort(-gallery, kind="stable")
        to_sentence.append(int(np.flatnonzero(order == len(gallery) - 1)[0]) + 1)
    for sentence, column in enumerate(scores.T):
        gallery = np.append(np.delete(column, owners[sentence]), column[owners[sentence]])
        order = np.argsort(-gallery, kind="stable")
        to_image.append(int(np.flatnonzero(order == len(gallery) - 1)[0]) + 1)
    return to_sentence, to_image


def exact_scores(images: np.ndarray, sentences: np.ndarray, metric: str) -> np.ndarray:
    a = images.astype(np.float64)
    b = sentences.astype(np.float64)
    if metric == "inner_product":
        return a @ b.T
    return -((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)


def make_pairs(n: int, c: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw `n` images with one to seven sentences each, in random order. Return the vectors of the images (n, c) and of
    the sentences (m, c), and the row of the image of each sentence (m,)."""
    owners = rng.permutation(np.repeat(np.arange(n), rng.integers(1, 8, n)))
    images = rng.standard_normal((n, c))
    sentences = images[owners] + 1.5 * rng.standard_normal((len(owners), c))
    return images.astype(np.float32), sentences.astype(np.float32), owners


def make_tied_pairs(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw pairs with few distinct vectors, so that most scores are tied. Return the vectors of 90 images and of 270
    sentences, and the row of the image of each sentence."""
    images, sentences = (rng.integers(-1, 2, (n, 5)).astype(np.float32) for n in (90, 270))
    return images, sentences, np.repeat(np.arange(90), 3)


def make_close_pairs(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw 260 images in four groups, and two sentences near each image. The images of a group are almost equal, so
    that single precision cannot always tell their scores apart. Return the vectors of the images and of the sentences,
    and the row of the image of each sentence."""
    owners = rng.permutation(np.repeat(np.arange(260), 2))
    images = np.repeat(rng.standard_normal((4, 19)), 65, axis=0)
    images = (images + 1e-4 * rng.standard_normal(images.shape)).astype(np.float32)
    return images, (images[owners] + 1e-4 * rng.standard_normal((520, 19))).astype(np.float32), owners


PAIRS = {
    "one": partial(make_pairs, 1, 16),
    "many": partial(make_pairs, 300, 16),
    "tied": make_tied_pairs,
    "close": make_close_pairs,
}


@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
@pytest.mark.parametrize("pairs", PAIRS)
def test_ranks_equal_sorting(pairs: str, metric: str) -> None:
    """The ranks equal the naive ranks, and stay the same if all vectors are scaled by powers of two, which is exact."""
    images, sentences, owners = PAIRS[pairs](np.random.default_rng(5))
    expected = naive_ranks(exact_scores(images, sentences, metric), owners)
    if (pairs, metric) == ("close", "inner_product"):
        assert naive_ranks(images @ sentences.T, owners) != expected
    for scale in np.float32([1, 2.0**100, 2.0**-100]):
        found = count_ranks(scale * images, scale * sentences, owners, metric)
        assert (found.image_to_sentence.tolist(), found.sentence_to_image.tolist()) == expected


@pytest.mark.parametrize("c", [96, 129])
def test_equal_vectors_are_tied_in_every_row(c: int) -> None:
    # A plain product of matrices gives equal vectors scores that differ in the last bit.
    rng = np.random.default_rng(c)
    copies = np.tile(rng.standard_normal(c, dtype=np.float32), (700, 1))
    found = count_ranks(copies, copies, np.arange(700), "inner_product")
    assert set(found.image_to_sentence) == set(found.sentence_to_image) == {700}


def test_a_tie_with_another_sentence_of_the_same_image_does_not_lower_the_rank() -> None:
    scores = np.array([[1, 1 - 1e-9, 0.5], [0, 0, 1]])
    found = rank_scores(scores, np.array([0, 0, 1]), tie=1e-6)
    assert found.image_to_sentence.tolist() == [1, 1] and found.sentence_to_image.tolist() == [1, 1, 1]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_named(bad: float) -> None:
    images, sentences, owners = make_pairs(9, 4, np.random.default_rng(4))
    sentences[5, 2] = bad
    with pytest.raises(IntegrityError, match="sentences row 5 is not finite"):
        count_ranks(images, sentences, owners, "inner_product")


def test_an_image_without_a_sentence_is_named() -> None:
    with pytest.raises(InputError, match="image in row 1 has no caption"):
        count_ranks(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32), np.array([0, 2, 2]), "inner_product")
    with pytest.raises(InputError, match="image in row 0 has no caption"):
        count_ranks(np.eye(3, dtype=np.float32), np.empty((0, 3), np.float32), np.empty(0, int), "inner_product")

"""Tests of the search for wrong captions: the folds, the scores, and captions that belong to another photo."""

from collections.abc import Iterator

import numpy as np
import pytest
from scipy import sparse
from small_settings import text_view

from pipeline.errors import InputError
from pipeline.models.linear.cross_fit import FOLDS, PAIR_COLUMNS, Scores, cross_fit, draw_folds, score_rivals
from pipeline.models.linear.projection import unit_rows
from pipeline.models.linear.views import ImageView
from pipeline.storage.pairs import SplitRows

NO_PAIRS = np.empty((0, len(PAIR_COLUMNS)), int)


def columns_of(scores: Scores) -> dict[str, np.ndarray]:
    """Return the columns of `scores.pairs`, by name."""
    return dict(zip(PAIR_COLUMNS, scores.pairs[np.arange(len(scores.scores))].T, strict=True))


def test_near_duplicates_share_a_fold_and_a_caption_is_scored_together_with_its_siblings() -> None:
    folds = draw_folds(np.array([[0, 1], [1, 2]]), 500, seed=0)
    assert len({*folds[:3]}) == 1 and {*folds} == set(range(FOLDS))
    rng, owners = np.random.default_rng(0), np.repeat(np.arange(40), 2)
    x = unit_rows(rng.standard_normal((40, 8)))
    y = unit_rows(x[owners] + 0.2 * rng.standard_normal((80, 8)))
    x[0], y[:2] = np.eye(8)[0], np.eye(8)[1]
    photographs, captions = score_rivals(np.arange(40), np.arange(80), owners, x, y)
    for scores in (photographs, captions):
        pairs = columns_of(scores)
        assert not (pairs["rather"] // 2 == pairs["image_id"]).any()
        assert pairs["rank"][0] > 1 == np.median(pairs["rank"])
    assert captions.scores[0] > photographs.scores[0] + 1  # The sibling caption supports caption 0.


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("count", "share"), [(500, 0), (500, 0.2), (5000, 0), (5000, 0.2), (20_000, 0.05)])
def test_few_of_the_likely_wrong_pairs_are_right(seed: int, count: int, share: float) -> None:
    """Wrong pairs have the same distribution of scores as exchanged pairs. Right pairs have higher scores on average,
    but the two distributions overlap."""
    rng = np.random.default_rng(seed)
    is_wrong = np.arange(count) < share * count
    exchanged = rng.standard_normal(count)
    own = np.where(is_wrong, rng.standard_normal(count), rng.normal(2.5, 1, count))
    scores = Scores(own, exchanged, NO_PAIRS)
    chosen = is_wrong[np.argsort(own)[: scores.likely_wrong]]
    assert len(chosen) <= scores.wrong
    if share == 0:
        assert len(chosen) <= 0.002 * count
    else:
        assert chosen.mean() >= 0.8 and len(chosen) >= 0.3 * is_wrong.sum()


def test_scores_of_pairs_follow_the_definition() -> None:
    """Computes the CSLS scores of the own and the exchanged pairs one by one. There are three neighbours, because there
    are only four photos."""
    rng, owners = np.random.default_rng(1), np.array([0, 0, 1, 2, 2, 3])
    x, y = unit_rows(rng.standard_normal((4, 5))), unit_rows(rng.standard_normal((6, 5)))
    photographs, captions = score_rivals(np.arange(10, 14), np.arange(20, 26), owners, x, y)
    others = np.where(owners == np.arange(4)[:, None], -1, x @ y.T)  # a photo's own captions count as -1
    csls = 2 * x @ y.T - others.mean(axis=1)[:, None] - others.mean(axis=0)
    together = np.stack([csls[:, owners == image].mean(axis=1) for image in range(4)], axis=1)
    np.testing.assert_allclose(photographs.scores, np.diag(together), atol=1e-6)
    np.testing.assert_allclose(photographs.exchanged, together[np.arange(4), [2, 3, 0, 1]], atol=1e-6)
    assert columns_of(photographs)["rank"].tolist() == [1 + (row > row[i]).sum() for i, row in enumerate(together)]
    for caption, image in enumerate(owners):
        siblings = [y[other] for other in np.flatnonzero(owners == image) if other != caption]
        context = x[image] + (np.mean(siblings, axis=0) if siblings else 0)
        hubs = others.mean(axis=1)[image]
        for found, said in ((captions.scores, caption), (captions.exchanged, (caption + 3) % 6)):
            expected = 2 * context @ y[said] / np.linalg.norm(context) - hubs - others.mean(axis=0)[said]
            assert found[caption] == pytest.approx(expected, abs=1e-6)
        rivals = [csls[image, other] for other in range(6) if owners[other] != image]
        assert columns_of(captions)["rank"][caption] == 1 + sum(value >= csls[image, caption] for value in rivals)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.2, 0.5])
def test_the_number_of_wrong_pairs_is_estimated_and_they_score_lowest(share: float) -> None:
    """Wrong pairs have the same distribution of scores as exchanged pairs. The mean score of right pairs is 4 standard
    deviations higher."""
    rng, count = np.random.default_rng(2), 20_000
    is_wrong = rng.random(count) < share
    scores, exchanged = rng.normal(np.where(is_wrong, 0, 4), 1), rng.normal(0, 1, count)
    found = Scores(scores, exchanged, NO_PAIRS).wrong
    assert found == pytest.approx(is_wrong.sum(), abs=0.02 * count)
    worst = np.argsort(scores)[:found]
    assert is_wrong[worst].sum() >= 0.9 * found


def blocks_of(folds: np.ndarray, x: np.ndarray, y: np.ndarray, owners: np.ndarray, fold: int) -> Iterator[SplitRows]:
    """Generate the photos of a fold with their captions, in blocks of at most 50 photos."""
    for image_id in np.split(np.flatnonzero(folds == fold), range(50, len(folds), 50)):
        own = np.flatnonzero(np.isin(owners, image_id))
        if len(image_id):
            texts = {"tfidf": sparse.csr_array(y[own])}
            yield SplitRows(image_id, {"net": x[image_id]}, texts, own, np.searchsorted(image_id, owners[own]))


def make_pairs(n: int = 600) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw the features of `n` photos and of two captions per photo. Every tenth photo has another photo's captions."""
    rng, owners = np.random.default_rng(3), np.repeat(np.arange(n), 2)
    shown = rng.standard_normal((n, 6))
    said = shown.copy()
    said[::10] = np.roll(shown[::10], 7, axis=0)
    x = shown @ rng.standard_normal((6, 20)) + 0.1 * rng.standard_normal((n, 20))
    y = said[owners] @ rng.standard_normal((6, 15)) + 0.1 * rng.standard_normal((2 * n, 15))
    return x.astype(np.float32), y.astype(np.float32), owners


def test_planted_wrong_captions_are_found_and_counted() -> None:
    x, y, owners = make_pairs()
    folds = draw_folds(np.empty((0, 2), int), len(x), seed=0)
    view = ImageView(("net",), (20,), ())
    photographs, captions = cross_fit(lambda fold: blocks_of(folds, x, y, owners, fold), view, text_view(15), 1)
    image_id = columns_of(photographs)["image_id"]
    assert sorted(image_id) == list(range(600)) and sorted(columns_of(captions)["sentence_id"]) == list(range(1200))
    assert 50 <= photographs.wrong <= 75
    worst = image_id[np.argsort(photographs.scores)[: photographs.wrong]]
    assert (worst % 10 == 0).sum() >= 50


def test_a_collection_of_near_duplicates_is_refused_with_the_reason() -> None:
    x, y, owners = make_pairs(200)
    copies = np.stack([np.arange(194), np.arange(1, 195)], axis=1)
    folds = draw_folds(copies, len(x), seed=0)
    with pytest.raises(InputError, match=r"39\d of 400 captions .* near-duplicates of each other"):
        cross_fit(lambda fold: blocks_of(folds, x, y, owners, fold), ImageView(("net",), (20,), ()), text_view(15), 1)


@pytest.mark.parametrize(("low", "expected"), [(9, 0), (12, 0), (20, 16)])
def test_pairs_are_likely_wrong_if_more_scores_are_low_than_right_pairs_explain(low: int, expected: int) -> None:
    """81 pairs score below the 0.9 quantile of the exchanged pairs. If all 81 were right, about 9 of them would score
    below the median, and chance could make it 12."""
    own = np.concatenate([np.full(low, 0.25), np.full(81 - low, 0.85), np.full(200, 2.0)])
    scores = Scores(own, np.linspace(0, 1, 1001), NO_PAIRS)
    assert scores.likely_wrong == expected

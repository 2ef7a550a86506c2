"""Tests of the search for wrong captions: the folds, the scores, and captions that belong to another photo."""

from collections.abc import Iterator

import numpy as np
import pytest
from scipy import sparse
from small_settings import text_view

from pipeline.errors import InputError
from pipeline.models.linear.cross_fit import FOLDS, PAIR_COLUMNS, Rivals, Scores, cross_fit, draw_folds, score_rivals
from pipeline.models.linear.projection import unit_rows
from pipeline.models.linear.views import ImageView
from pipeline.storage.pairs import SplitRows


def columns_of(scores: Scores) -> dict[str, np.ndarray]:
    """Return the columns of `scores.pairs`, name of the column -> (k,)."""
    return dict(zip(PAIR_COLUMNS, scores.pairs[np.arange(len(scores.scores))].T, strict=True))


def test_near_duplicates_share_a_fold_and_a_caption_is_scored_together_with_its_siblings() -> None:
    folds = draw_folds(np.array([[0, 1], [1, 2]]), 500, seed=0)
    assert len({*folds[:3]}) == 1 and {*folds} == set(range(FOLDS))
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(40), 2)
    x = unit_rows(rng.standard_normal((40, 8)))
    y = unit_rows(x[owners] + 0.2 * rng.standard_normal((80, 8)))
    x[0], y[:2] = np.eye(8)[0], np.eye(8)[1]
    photographs, captions = score_rivals(Rivals(np.arange(40), np.arange(80), owners, x, y))
    for scores in (photographs, captions):
        pairs = columns_of(scores)
        assert not (pairs["rather"] // 2 == pairs["image_id"]).any()
        assert pairs["rank"][0] > 1 == np.median(pairs["rank"])
    # Captions 0 and 1 of photo 0 agree with each other but not with the photo. Caption 1 supports caption 0 alone, but
    # both together get a low score.
    assert captions.scores[0] > photographs.scores[0] + 0.5


def test_scores_of_pairs_follow_the_definition() -> None:
    """The scores of all pairs, the scores of the exchanged pairs, and the ranks are compared with CSLS in plain loops.
    There are fewer than NEIGHBOURS photos and captions, so a hub correction is the average over all photos or all
    captions."""
    rng = np.random.default_rng(1)
    owners = np.array([0, 0, 1, 2, 2, 3])
    x = unit_rows(rng.standard_normal((4, 5)))
    y = unit_rows(rng.standard_normal((6, 5)))
    photographs, captions = score_rivals(Rivals(np.arange(10, 14), np.arange(20, 26), owners, x, y))
    others = np.where(owners == np.arange(4)[:, None], -1, x @ y.T)  # A photo's own captions count as -1.
    csls = 2 * x @ y.T - others.mean(axis=1)[:, None] - others.mean(axis=0)
    together = np.stack([csls[:, owners == image].mean(axis=1) for image in range(4)], axis=1)
    np.testing.assert_allclose(photographs.scores, np.diag(together), atol=1e-6)
    np.testing.assert_allclose(photographs.exchanged, together[np.arange(4), [2, 3, 0, 1]], atol=1e-6)
    assert columns_of(photographs)["rank"].tolist() == [1 + (row > row[i]).sum() for i, row in enumerate(together)]

    def context(image: int, left_out: int) -> np.ndarray:
        siblings = [y[other] for other in np.flatnonzero(owners == image) if other != left_out]
        total = x[image] + 0.4 * np.sum(siblings, axis=0) if siblings else x[image]
        return total / np.linalg.norm(total)

    first = [context(image, np.flatnonzero(owners == image)[0]) for image in range(4)]
    with_contexts = np.where(owners == np.arange(4)[:, None], -1, first @ y.T)
    for caption, image in enumerate(owners):
        for found, said in ((captions.scores, caption), (captions.exchanged, (caption + 3) % 6)):
            hubs = with_contexts[image].mean() + with_contexts[:, said].mean()
            assert found[caption] == pytest.approx(2 * context(image, caption) @ y[said] - hubs, abs=1e-6)
        rivals = [csls[image, other] for other in range(6) if owners[other] != image]
        assert columns_of(captions)["rank"][caption] == 1 + sum(value >= csls[image, caption] for value in rivals)


def blocks_of(folds: np.ndarray, x: np.ndarray, y: np.ndarray, owners: np.ndarray, fold: int) -> Iterator[SplitRows]:
    """Generate the photos of the fold `fold` with their captions, in blocks of at most 50 photos. `folds` (n,) has the
    fold of each of n photos, and `x` has the features of the photos. `y` has the vectors of m captions, which belong to
    the photos `owners` (m,)."""
    for image_id in np.split(np.flatnonzero(folds == fold), range(50, len(folds), 50)):
        own = np.flatnonzero(np.isin(owners, image_id))
        if len(image_id):
            texts = {"tfidf": sparse.csr_array(y[own])}
            yield SplitRows(image_id, {"net": x[image_id]}, texts, own, np.searchsorted(image_id, owners[own]))


def make_pairs(n: int = 600) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw `n` photos with two captions each. The captions of every tenth photo describe another photo. Return the
    features of the photos, the vectors of the captions, and the photo of each caption."""
    rng = np.random.default_rng(3)
    owners = np.repeat(np.arange(n), 2)
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

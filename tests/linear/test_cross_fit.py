"""Which captions are wrong: folds, and what is said of captions whose photograph shows something else."""

import numpy as np
import pytest

from pipeline.models.linear.cross_fit import FOLDS, Scores, deal_folds, score_rivals
from pipeline.models.linear.projection import unit_rows


def test_copies_share_a_fold_and_a_caption_is_judged_with_its_siblings_against_those_of_others() -> None:
    folds = deal_folds(np.array([[0, 1], [1, 2]]), 500, seed=0)
    assert len({*folds[:3]}) == 1 and {*folds} == set(range(FOLDS))
    rng, owners = np.random.default_rng(0), np.repeat(np.arange(40), 2)
    x = unit_rows(rng.standard_normal((40, 8)))
    y = unit_rows(x[owners] + 0.2 * rng.standard_normal((80, 8)))
    x[0], y[:2] = np.eye(8)[0], np.eye(8)[1]
    photographs, captions = score_rivals(np.arange(40), np.arange(80), owners, x, y)
    for scores in (photographs, captions):
        assert not (scores.rather // 2 == scores.image_id).any() and scores.rank[0] > 1 == np.median(scores.rank)
    assert captions.scores[0] > photographs.scores[0] + 1  # its sibling says the same


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("count", "share"), [(500, 0), (500, 0.2), (5000, 0), (5000, 0.2), (20_000, 0.05)])
def test_of_the_pairs_that_are_likely_wrong_few_are_right(seed: int, count: int, share: float) -> None:
    """Wrong pairs score as exchanged ones do. Right pairs score higher, but some of them as low."""
    rng = np.random.default_rng(seed)
    is_wrong = np.arange(count) < share * count
    exchanged = rng.standard_normal(count)
    own = np.where(is_wrong, rng.standard_normal(count), rng.normal(2.5, 1, count))
    none = np.zeros(count, int)
    scores = Scores(np.arange(count), none - 1, own, exchanged, none, none, none)
    chosen = is_wrong[np.argsort(own)[: scores.likely_wrong]]
    assert len(chosen) <= scores.wrong
    if share == 0:
        assert len(chosen) <= 0.002 * count
    else:
        assert chosen.mean() >= 0.8 and len(chosen) >= 0.3 * is_wrong.sum()


@pytest.mark.parametrize(("low", "expected"), [(9, 0), (12, 0), (20, 16)])
def test_pairs_are_likely_wrong_if_more_are_low_than_right_ones_explain(low: int, expected: int) -> None:
    """Of 81 pairs below the quantile 0.9, about 9 right ones are below the median, or 12 by chance."""
    own = np.concatenate([np.full(low, 0.25), np.full(81 - low, 0.85), np.full(200, 2.0)])
    none = np.zeros(len(own), int)
    scores = Scores(none, none, own, np.linspace(0, 1, 1001), none, none, none)
    assert scores.likely_wrong == expected

"""Which captions are wrong: folds, and what is said of captions whose photograph shows something else."""

import numpy as np

from pipeline.models.linear.cross_fit import FOLDS, deal_folds, score_rivals
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

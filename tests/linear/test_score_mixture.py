"""Tests of the mixture of right and wrong pairs and of the false discovery rates, with scores that are drawn from known
distributions."""

import numpy as np
import pytest
from scipy.stats import norm

from pipeline.models.linear.cross_fit import PAIR_COLUMNS, Scores, fit_mixture

NO_PAIRS = np.empty((0, len(PAIR_COLUMNS)), int)
SEEDS = 20
RATE = 0.1


def planted(seed: int, count: int, share: float, distance: float) -> tuple[Scores, np.ndarray]:
    """Draw the scores of `count` pairs, of which the share `share` is wrong, and the scores of `count` exchanged pairs.
    Return the Scores, and an array (count,) bool that says whether each pair is wrong.

    The scores of wrong and exchanged pairs have the same normal distribution. The mean score of right pairs is
    `distance` standard deviations higher.
    """
    rng = np.random.default_rng(seed)
    is_wrong = np.arange(count) < round(share * count)
    own = rng.normal(np.where(is_wrong, 0, distance), 1)
    return Scores(own, rng.standard_normal(count), NO_PAIRS), is_wrong


@pytest.mark.parametrize("distance", [2.5, 4, 8])
@pytest.mark.parametrize(("count", "share"), [(500, 0.05), (500, 0.2), (5000, 0.01), (5000, 0.05), (20_000, 0.2)])
def test_the_realised_rate_is_the_promised_rate(count: int, share: float, distance: float) -> None:
    """On average over SEEDS draws, at most 12 % of the pairs that are listed at the false discovery rate RATE (10 %)
    are right. The list has almost as large a share of all wrong pairs as the best possible list. The cut of the best
    possible list follows from the two normal distributions.

    With the distance 8, the scores of right and wrong pairs do not overlap.
    """
    realised = []
    power = []
    for seed in range(SEEDS):
        scores, is_wrong = planted(seed, count, share, distance)
        order, rates = scores.lowest()
        listed = is_wrong[order[: np.searchsorted(rates, RATE, side="right")]]
        realised.append(1 - listed.mean() if len(listed) else 0)
        power.append(listed.sum() / is_wrong.sum())
        assert (np.diff(rates) >= 0).all() and rates[-1] <= 1
    cuts = np.linspace(-6, 6, 2001)
    wrong = share * norm.cdf(cuts)
    right = (1 - share) * norm.cdf(cuts - distance)
    best = norm.cdf(cuts[right <= RATE * (wrong + right)][-1])
    assert np.mean(realised) <= 0.12
    assert np.mean(power) >= best - (0.05 if share * count > 50 else 0.25), "short lists must have fewer right pairs"


@pytest.mark.parametrize("count", [250, 2500, 20_000])
@pytest.mark.parametrize("distance", [1.5, 2.5, 4, 8])
def test_few_right_pairs_are_listed_if_no_pair_is_wrong(count: int, distance: float) -> None:
    listed = []
    for seed in range(SEEDS):
        rates = planted(seed, count, 0, distance)[0].lowest()[1]
        listed.append(np.searchsorted(rates, RATE, side="right"))
    assert np.median(listed) == 0 and np.mean(listed) <= max(1, 0.001 * count)


@pytest.mark.parametrize("distance", [3, 8])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.5])
def test_the_number_of_wrong_pairs_is_estimated(share: float, distance: float) -> None:
    estimates = [planted(seed, 20_000, share, distance)[0].wrong for seed in range(SEEDS)]
    assert np.mean(estimates) == pytest.approx(20_000 * share, rel=0.05)


def test_the_probability_follows_bayes_rule() -> None:
    """The probabilities that pairs are right by the fitted mixture are compared with the probabilities that follow from
    the densities from which the scores were drawn."""
    scores, _ = planted(0, 200_000, 0.1, 3)
    at = np.linspace(-1, 2, 7)
    wrong = 0.1 * norm.pdf(at)
    right = 0.9 * norm.pdf(at - 3)
    found = fit_mixture(scores.scores, scores.exchanged).right_probability(at)
    np.testing.assert_allclose(found, right / (wrong + right), atol=0.02)


def test_equal_scores_and_a_single_pair_are_not_listed() -> None:
    for own, exchanged in ((np.ones(300), np.zeros(300)), (np.ones(1), np.zeros(1)), (np.zeros(300), np.zeros(300))):
        assert (Scores(own, exchanged, NO_PAIRS).lowest()[1] > RATE).all()

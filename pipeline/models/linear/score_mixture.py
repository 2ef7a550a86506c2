"""The mixture of wrong and right pairs in the scores of an audit, and the false discovery rate of a list of pairs.

Let f be the density of the scores of all pairs, and f0 the density of the scores of exchanged pairs, which are known to
be wrong. Right pairs have the density f1, and a share p of all pairs is wrong (the two-group model, Efron 2010, chapter
2):

    f(s) = p f0(s) + (1 - p) f1(s)

Here f0 is measured, and f1 is not known. A right pair is more likely the higher the score is. The model assumes that
the logarithm of f1 / f0 is linear in the score, as it is for two normal densities with the same variance:

    f(s) / f0(s) = p + exp(a + b s)

The parameters p, a and b maximise the likelihood of a classifier that tells all pairs from exchanged pairs, because the
odds of this classifier are the ratio of the two densities (Qin 1998). Only scores below TOP_QUANTILE of the exchanged
scores are used. Above, nearly all pairs are right, and the assumption need not hold there. The probability that a pair
with the score s is right is exp(a + b s) / (p + exp(a + b s)). Its mean over a list is the false discovery rate of the
list.

If right and wrong pairs separate perfectly, no right pair has a score that is used, and the data do not determine a and
b. Two limits then give a good list. First, b is at least MIN_SLOPE times the slope of two normal densities. With b = 0,
exp(a) would be a constant like p, and wrong pairs could count as right pairs. Second, a list has at most p k wrong
pairs, where k is the number of all pairs, whatever the probabilities are.
"""

from dataclasses import dataclass

import numpy as np
import scipy

TOP_QUANTILE = 0.99
"""Quantile of the exchanged pairs' scores up to which the mixture is fitted."""
BINS = 4096
"""Number of intervals in which scores are counted, so that the fit takes the same time for any number of pairs."""
MAX_LOGARITHM = 50.0
"""Greatest absolute value of log f1 / f0 during the fit. Its exponential is finite and not zero."""
MIN_SLOPE = 0.5
"""Least slope b, relative to the distance between the median of all scores and the mean of the exchanged scores, in
standard deviations. With two normal densities of the same variance and few wrong pairs, b is equal to this distance."""
PRIOR_COUNT = 0.5
"""Addition to the estimated number of right pairs in a list, so that short lists keep the rate. For a number with a
Poisson distribution, the posterior mean under the prior of Jeffreys exceeds the estimate by this value."""
FIRST_SHARES = (1e-3, 1e-2, 1e-1)
"""Shares of wrong pairs with which the optimiser starts. The most likely result is used."""


@dataclass(frozen=True)
class ScoreMixture:
    """A `share` of the pairs is wrong, and log f1 / f0 is `intercept` + `slope` * (score - `mean`) / `deviation`."""

    share: float
    intercept: float
    slope: float
    mean: float
    deviation: float

    def right_probability(self, scores: np.ndarray) -> np.ndarray:
        """Return the probability (k,) that pairs with the `scores` (k,) are right. It ascends with the score."""
        if self.share == 0:
            return np.ones(len(scores))
        logarithm = self.intercept + self.slope * (scores - self.mean) / self.deviation
        return scipy.special.expit(logarithm - np.log(self.share))

    def false_discovery_rates(self, scores: np.ndarray) -> np.ndarray:
        """Return the false discovery rates (k,) of all pairs, given their `scores` (k,), which ascend.

        A list has the pairs with the lowest scores, up to some score. The rate of a pair is the least estimated share
        of right pairs in a list that includes the pair. The rates ascend (the q-values of Storey 2002).
        """
        lengths = np.arange(1, len(scores) + 1)
        right = np.maximum(np.cumsum(self.right_probability(scores)), lengths - self.share * len(scores))
        rates = np.minimum((right + PRIOR_COUNT) / lengths, 1)
        return np.minimum.accumulate(rates[::-1])[::-1]


def fit_mixture(scores: np.ndarray, exchanged: np.ndarray) -> ScoreMixture:
    """Fit the mixture to the `scores` (k,) of all pairs and the scores (e,) of `exchanged` pairs."""
    mean = float(exchanged.mean())
    deviation = float(exchanged.std()) or 1.0
    top = np.quantile(exchanged, TOP_QUANTILE)
    edges = np.linspace(min(scores.min(), exchanged.min()), top, BINS + 1)
    of_all, of_exchanged = np.histogram(scores, edges)[0], np.histogram(exchanged, edges)[0]
    z = (edges[:-1] + edges[1:] - 2 * mean) / (2 * deviation)
    min_slope = MIN_SLOPE * max(0.0, (float(np.median(scores)) - mean) / deviation)
    size_ratio = len(scores) / len(exchanged)

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        share, intercept, slope = parameters
        right = np.exp(np.clip(intercept + slope * z, -MAX_LOGARITHM, MAX_LOGARITHM))
        odds = size_ratio * (share + right)
        value = of_all @ (np.log1p(odds) - np.log(odds)) + of_exchanged @ np.log1p(odds)
        by_odds = size_ratio * ((of_all + of_exchanged) / (1 + odds) - of_all / odds)
        return value, np.array([by_odds.sum(), by_odds @ right, by_odds @ (right * z)])

    bounds = [(0, 1), (None, None), (min_slope, None)]
    starts = [(share, -4.0, max(1.5, min_slope)) for share in FIRST_SHARES]
    fits = [scipy.optimize.minimize(loss, start, jac=True, bounds=bounds) for start in starts]
    share, intercept, slope = min(fits, key=lambda fit: fit.fun).x
    return ScoreMixture(share, intercept, slope, mean, deviation)

"""The mixture of wrong and right pairs in the scores of an audit, and the false discovery rate of a list of pairs.

Let f be the density of the scores of all pairs, and f0 the density of the scores of exchanged pairs, which are known to
be wrong. Right pairs have the density f1, and a share p of all pairs is wrong (the two-group model, Efron 2010, chapter
2):

    f(s) = p f0(s) + (1 - p) f1(s)

Here f0 is measured, and f1 is not known. A low score is much more likely for a wrong pair. The model therefore assumes
that the logarithm of f1 / f0 is linear in the score, as it is for two normal densities with the same variance:

    f(s) / f0(s) = p + exp(a + b s),   b >= 0

The parameters p, a and b maximise the likelihood of a classifier that tells all pairs from exchanged pairs, because the
odds of this classifier are the ratio of the two densities (Qin 1998). Only scores below TOP_QUANTILE of the exchanged
scores are used. Above, nearly all pairs are right, and the assumption need not hold there. The probability that a pair
with the score s is right is exp(a + b s) / (p + exp(a + b s)). Its mean over a list is the false discovery rate of the
list.
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


def fit_mixture(scores: np.ndarray, exchanged: np.ndarray) -> ScoreMixture:
    """Fit the mixture to the `scores` (k,) of all pairs and the scores (e,) of `exchanged` pairs."""
    mean = float(exchanged.mean())
    deviation = float(exchanged.std()) or 1.0
    top = np.quantile(exchanged, TOP_QUANTILE)
    edges = np.linspace(min(scores.min(), exchanged.min()), top, BINS + 1)
    of_all, of_exchanged = np.histogram(scores, edges)[0], np.histogram(exchanged, edges)[0]
    z = (edges[:-1] + edges[1:] - 2 * mean) / (2 * deviation)
    size_ratio = len(scores) / len(exchanged)

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        share, intercept, slope = parameters
        right = np.exp(np.clip(intercept + slope * z, -MAX_LOGARITHM, MAX_LOGARITHM))
        odds = size_ratio * (share + right)
        value = of_all @ (np.log1p(odds) - np.log(odds)) + of_exchanged @ np.log1p(odds)
        by_odds = size_ratio * ((of_all + of_exchanged) / (1 + odds) - of_all / odds)
        return value, np.array([by_odds.sum(), by_odds @ right, by_odds @ (right * z)])

    bounds = [(0, 1), (None, None), (0, None)]
    fits = [scipy.optimize.minimize(loss, (share, -4.0, 1.5), jac=True, bounds=bounds) for share in FIRST_SHARES]
    share, intercept, slope = min(fits, key=lambda fit: fit.fun).x
    return ScoreMixture(share, intercept, slope, mean, deviation)

"""By how much one system is better than another: paired intervals over images and training draws."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from pipeline.errors import InputError
from pipeline.metrics.retrieval import INTERVAL, Bootstrap, resample

Columns = Sequence[tuple[str, str]]
"""Directions with a measure each, as a table has them."""


@dataclass(frozen=True)
class Draw:
    """One training of a system: what it is `worth` where the image `images[i]` (n,) counts `weights[i]` times, with all
    that belongs to it, or nan where nothing does; weights (n,) are whole numbers."""

    images: np.ndarray
    worth: Callable[[np.ndarray], float]


def draw_of_ranks(ranks: Mapping[str, np.ndarray], images: Mapping[str, np.ndarray], columns: Columns) -> Draw:
    """A training that is worth the sum of its `columns` ((direction, recall@K or mean_rank), ...), recalls in percent.

    `ranks[direction]` (k,) are of queries of the images `images[direction]` (k,).
    """
    ids = np.unique(np.concatenate([images[direction] for direction, _ in columns]))
    sums, counts = [], []
    for direction, measure in columns:
        name, _, cutoff = measure.partition("@")
        values = 100.0 * (ranks[direction] <= int(cutoff)) if name == "recall" else ranks[direction].astype(float)
        owners = np.searchsorted(ids, images[direction])
        sums.append(np.bincount(owners, values, len(ids)))
        counts.append(np.bincount(owners, minlength=len(ids)))
    totals, sizes = np.stack(sums, axis=1), np.stack(counts, axis=1)
    return Draw(ids, lambda weights: float(np.sum((weights @ totals) / (weights @ sizes))))


def paired_difference(
    ours: np.ndarray, theirs: np.ndarray, cutoff: int, bootstrap: Bootstrap
) -> Mapping[str, float | list[float]]:
    """recall@`cutoff` of `ours` minus that of `theirs`, in points, from ranks (draws, n) of the same images and draws.

    A paired bootstrap resamples images and, independently, training draws, the same for both. `ci95` are its
    percentiles, `p` is the share of resamples in which ours is not better.
    """
    gain = 100.0 * ((ours <= cutoff).astype(float) - (theirs <= cutoff))
    rng = np.random.default_rng(bootstrap.seed)
    n_draws, n_images = gain.shape
    resamples = np.empty(bootstrap.resamples)
    for i in range(bootstrap.resamples):
        rows, columns = rng.integers(n_draws, size=n_draws), rng.integers(n_images, size=n_images)
        resamples[i] = gain[rows][:, columns].mean()
    interval = np.percentile(resamples, INTERVAL).tolist()
    return {"difference": float(gain.mean()), "ci95": interval, "p": float(np.mean(resamples <= 0))}


def compare_draws(
    ours: Sequence[Draw], theirs: Sequence[Draw], bootstrap: Bootstrap
) -> Mapping[str, float | list[float]]:
    """What one system is worth minus what another is, each the mean over its draws (trainings from several seeds).

    A paired bootstrap resamples images, the same for both systems; a resample in which a draw has no worth is left out.
    With one draw of each, `ci95` are its percentiles and `p` is the share of resamples in which the difference has not
    the sign of `difference`. With more, the variances over the draws of each are added to that over images, and both
    are Student's with Welch's degrees of freedom: to resample three draws would show two thirds of their variance.
    Raises InputError where two draws were measured on different images.
    """
    rng, images = np.random.default_rng(bootstrap.seed), ours[0].images
    if not all(np.array_equal(one.images, images) for one in (*ours, *theirs)):
        raise InputError("two systems of the run were measured on different images; measure both again")

    def worths(weights: np.ndarray) -> list[np.ndarray]:
        return [np.array([one.worth(weights) for one in system]) for system in (ours, theirs)]

    def minus(weights: np.ndarray) -> float:
        own, other = worths(weights)
        return float(own.mean() - other.mean())

    every = np.ones(len(images), np.int64)
    difference = minus(every)
    resamples = np.array([minus(resample(rng, len(images))) for _ in range(bootstrap.resamples)])
    resamples = resamples[np.isfinite(resamples)]
    if len(ours) == len(theirs) == 1:
        interval = np.percentile(resamples, INTERVAL).tolist()
        return {"difference": difference, "ci95": interval, "p": float(np.mean(resamples * np.sign(difference) <= 0))}
    parts = [(float(np.var(resamples)), len(images) - 1)]
    parts += [(float(np.var(own, ddof=1)) / len(own), len(own) - 1) for own in worths(every) if len(own) > 1]
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return {"difference": difference, "ci95": [difference] * 2, "p": float(difference == 0)}
    student = stats.t(variance**2 / sum(part**2 / freedom for part, freedom in parts), difference, variance**0.5)
    interval = student.ppf(np.array(INTERVAL) / 100).tolist()
    return {"difference": difference, "ci95": interval, "p": float(min(student.cdf(0), student.sf(0)))}

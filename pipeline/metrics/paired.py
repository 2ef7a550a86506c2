"""By how much one system is better than another: paired intervals over images and training draws."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from scipy import stats

from pipeline.errors import InputError
from pipeline.metrics.retrieval import INTERVAL, Bootstrap, resample

Columns = Sequence[tuple[str, str]]
"""Directions with a measure each, as a table has them."""


class Difference(TypedDict):
    """The difference between two systems, with its 95 % interval and the p value of its sign."""

    difference: float
    ci95: list[float]
    p: float


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


def compare_draws(
    ours: Sequence[Draw], theirs: Sequence[Draw], bootstrap: Bootstrap, share: float | None = None
) -> Difference:
    """What one system is worth minus what another is, each the mean over its draws (trainings from several seeds).

    A paired bootstrap resamples images, the same for both systems; a resample in which a draw has no worth is left out.
    With one draw of each, `ci95` are its percentiles and `p` is the share of resamples in which the difference has not
    the sign of `difference`. With more, the variances over the draws of each are added to that over images, and both
    are Student's with Welch's degrees of freedom: to resample three draws would show two thirds of their variance.
    With a `share` both systems were trained on the same training sets, draw for draw: it is that part of the variance
    of their differences over draws that is added, 1 / draws where the sets have nothing in common. Raises InputError
    where two draws were measured on different images.
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
    if share is None and len(ours) == len(theirs) == 1:
        interval = np.percentile(resamples, INTERVAL).tolist()
        return {"difference": difference, "ci95": interval, "p": float(np.mean(resamples * np.sign(difference) <= 0))}
    parts = [(float(np.var(resamples)), len(images) - 1)]
    own, other = worths(every)
    apart = [(own, 1 / len(own)), (other, 1 / len(other))] if share is None else [(own - other, share)]
    parts += [(float(np.var(values, ddof=1)) * part, len(values) - 1) for values, part in apart if len(values) > 1]
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return {"difference": difference, "ci95": [difference] * 2, "p": float(difference == 0)}
    student = stats.t(variance**2 / sum(part**2 / freedom for part, freedom in parts), difference, variance**0.5)
    interval = student.ppf(np.array(INTERVAL) / 100).tolist()
    return {"difference": difference, "ci95": interval, "p": float(min(student.cdf(0), student.sf(0)))}

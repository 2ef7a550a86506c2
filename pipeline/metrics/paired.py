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
    """The difference between two systems, with its 95 % interval."""

    difference: float
    ci95: list[float]


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
    ours: Sequence[Draw], theirs: Sequence[Draw], bootstrap: Bootstrap, same_draws: bool = False
) -> Difference:
    """Return the worth of one system minus the worth of another, each the mean over its trainings.

    A paired bootstrap resamples images, the same for both systems. A resample in which a training has no worth is left
    out. If each system has one training, `ci95` are percentiles of the bootstrap. Otherwise the variance over the
    trainings of each system is added to the variance over images, and `ci95` is the interval of Student with the
    degrees of freedom of Welch, because resampling three trainings would show two thirds of their variance. With
    `same_draws`, the training number k of both systems learned from the same images, which no other training has, and
    the variance of the differences is added. Raises InputError if two trainings were measured on different images.
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
        return {"difference": difference, "ci95": np.percentile(resamples, INTERVAL).tolist()}
    parts = [(float(np.var(resamples)), len(images) - 1)]
    own, other = worths(every)
    independent = [own - other] if same_draws else [own, other]
    parts += [(float(np.var(one, ddof=1)) / len(one), len(one) - 1) for one in independent if len(one) > 1]
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return {"difference": difference, "ci95": [difference] * 2}
    student = stats.t(variance**2 / sum(part**2 / freedom for part, freedom in parts), difference, variance**0.5)
    return {"difference": difference, "ci95": student.ppf(np.array(INTERVAL) / 100).tolist()}

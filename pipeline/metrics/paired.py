"""Paired comparison of two systems: the difference of their scores, with an interval over images and training seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from scipy import stats

from pipeline.errors import InputError
from pipeline.metrics.retrieval import INTERVAL, Bootstrap, resample

Columns = Sequence[tuple[str, str]]
"""The columns of a table: pairs of a direction and a measure, such as `image_to_sentence` and `recall@1`."""


class Difference(TypedDict):
    """The score of a first system minus the score of a second system, and the 95% interval [low, high] of this
    difference. Both ends are nan if there are no resamples from which the interval could be computed."""

    difference: float
    ci95: list[float]


@dataclass(frozen=True)
class Draw:
    """The result of one training of a system. `images` (n,) are the ids of the images on which the system was measured.

    `worth(weights)` computes the score of the system if image i and its queries count `weights[i]` times. The weights
    (n,) are whole numbers. The score may be nan if no image with a weight above zero has a query.
    """

    images: np.ndarray
    worth: Callable[[np.ndarray], float]


def draw_of_ranks(ranks: Mapping[str, np.ndarray], images: Mapping[str, np.ndarray], columns: Columns) -> Draw:
    """Return a Draw whose score is the sum of the measures in `columns`.

    A column is a pair of a direction and a measure. The measure is recall@K, in percent, or mean_rank.
    `ranks[direction]` (k,) are the ranks of k queries, and `images[direction]` (k,) are the ids of the images to which
    the queries belong.
    """
    ids = np.unique(np.concatenate([images[direction] for direction, _ in columns]))
    sums = []
    counts = []
    for direction, measure in columns:
        name, _, cutoff = measure.partition("@")
        values = 100.0 * (ranks[direction] <= int(cutoff)) if name == "recall" else ranks[direction].astype(float)
        owners = np.searchsorted(ids, images[direction])
        sums.append(np.bincount(owners, values, len(ids)))
        counts.append(np.bincount(owners, minlength=len(ids)))
    totals = np.stack(sums, axis=1)
    sizes = np.stack(counts, axis=1)
    return Draw(ids, lambda weights: float(np.sum((weights @ totals) / (weights @ sizes))))


def compare_draws(
    first: Sequence[Draw], second: Sequence[Draw], bootstrap: Bootstrap, same_draws: bool = False
) -> Difference:
    """Compute the score of the `first` system minus the score of the `second`, with a 95% interval.

    Each system has one or more draws, which are trainings from different seeds. The score of a system is the mean over
    its draws. A paired bootstrap resamples the images, with the same resamples for both systems. Resamples in which a
    score is nan are ignored. If no resample remains, both ends of the interval are nan.

    If each system has one draw, `ci95` are percentiles of the resampled differences. Otherwise the interval follows
    Student's distribution with Welch's degrees of freedom. The variance of this distribution is the variance of the
    resampled differences, plus a variance for each system with several draws. The variance of a system is the variance
    of the score over the draws, divided by the number of draws. If all these variances are zero, both ends of the
    interval are the difference. The draws are not resampled, because a bootstrap of three draws would show only two
    thirds of their variance.

    `same_draws` says that draw k of the first system and draw k of the second system were trained on the same images,
    and no other draws were. Both systems must have the same number of draws. The variance over k of the difference
    between the scores of the two draws k is divided by the number of draws, and then replaces the variances of the two
    systems.

    Raises InputError if two draws were measured on different images.
    """
    rng = np.random.default_rng(bootstrap.seed)
    images = first[0].images
    if not all(np.array_equal(draw.images, images) for draw in (*first, *second)):
        raise InputError(
            "The two systems were measured on different images, so they cannot be compared. Evaluate both on the same"
            " split of the same run."
        )

    def scores(weights: np.ndarray) -> list[np.ndarray]:
        return [np.array([draw.worth(weights) for draw in system]) for system in (first, second)]

    def compute_difference(weights: np.ndarray) -> float:
        own, other = scores(weights)
        return float(own.mean() - other.mean())

    ones = np.ones(len(images), np.int64)
    difference = compute_difference(ones)
    resamples = np.array([compute_difference(resample(rng, len(images))) for _ in range(bootstrap.resamples)])
    resamples = resamples[np.isfinite(resamples)]
    if not len(resamples):
        return {"difference": difference, "ci95": [float("nan")] * 2}
    if len(first) == len(second) == 1:
        return {"difference": difference, "ci95": np.percentile(resamples, INTERVAL).tolist()}
    own, other = scores(ones)
    independent = [own - other] if same_draws else [own, other]
    variances = [(float(np.var(resamples)), len(images) - 1)]  # Pairs of a variance and its degrees of freedom.
    variances += [
        (float(np.var(values, ddof=1)) / len(values), len(values) - 1) for values in independent if len(values) > 1
    ]
    total = sum(variance for variance, _ in variances)
    if total == 0:
        return {"difference": difference, "ci95": [difference] * 2}
    freedom = total**2 / sum(variance**2 / own_freedom for variance, own_freedom in variances)
    student = stats.t(freedom, difference, total**0.5)
    return {"difference": difference, "ci95": student.ppf(np.array(INTERVAL) / 100).tolist()}

"""Recall at K, median and mean rank in both directions, with bootstrap intervals; protocols and paired differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import UsageError
from pipeline.metrics.ranks import Ranks

CUTOFFS = (1, 5, 10)
TIES = "a tie counts against the model"
INTERVAL = (2.5, 97.5)
"""Percentiles of the bootstrap that bound a 95% interval."""
Columns = Sequence[tuple[str, str]]
"""Directions with a measure each, as a table has them."""
PROTOCOLS = ("all-sentences", "first-sentence")


def select_sentences(owners: np.ndarray, protocol: str) -> np.ndarray:
    """The sentences that are queries and gallery by `protocol`, of sentences of the images `owners` (m,): all (Karpathy
    and Fei-Fei 2015) or the first of each image (Gong et al. 2014). UsageError lists the protocols."""
    if protocol not in PROTOCOLS:
        raise UsageError(f"unknown protocol {protocol}; there are {', '.join(PROTOCOLS)}")
    return np.arange(len(owners)) if protocol == "all-sentences" else np.unique(owners, return_index=True)[1]


@dataclass(frozen=True)
class Bootstrap:
    """`resamples` draws of the images with replacement, each image with its sentences."""

    resamples: int
    seed: int


@dataclass(frozen=True)
class Retrieval:
    """The measures of each direction, name -> value; with a bootstrap also name_ci95 -> [low, high]."""

    image_to_sentence: Mapping[str, float | list[float]]
    sentence_to_image: Mapping[str, float | list[float]]


def evaluate(ranks: Ranks, owners: np.ndarray, bootstrap: Bootstrap) -> Retrieval:
    """The measures of `ranks`, where sentence j is of image `owners[j]`."""
    each = np.arange(len(ranks.image_to_sentence))
    return Retrieval(
        measure(ranks.image_to_sentence, each, bootstrap), measure(ranks.sentence_to_image, owners, bootstrap)
    )


def recall_sum(ranks: Ranks) -> float:
    """The sum of recall@1, @5 and @10 of both directions in percent: 600 at best."""
    directions = (ranks.image_to_sentence, ranks.sentence_to_image)
    return float(sum(100 * np.mean(direction <= k) for direction in directions for k in CUTOFFS))


def measure(ranks: np.ndarray, owners: np.ndarray, bootstrap: Bootstrap) -> dict[str, float | list[float]]:
    """The measures of `ranks` (k,), where rank j is of image `owners[j]`; every image from 0 on has at least one."""
    return average([(ranks, owners)], bootstrap)


def average(galleries: Sequence[tuple[np.ndarray, np.ndarray]], bootstrap: Bootstrap) -> dict[str, float | list[float]]:
    """The means of the measures over `galleries`, each the ranks and owners of `measure`, each resampled separately."""
    samples = [_Sample(ranks, owners) for ranks, owners in galleries]
    measured: dict[str, float | list[float]] = _mean([s.measures(np.ones(s.n_images, np.int64)) for s in samples])
    if bootstrap.resamples:
        rng = np.random.default_rng(bootstrap.seed)
        draws = [_mean([s.measures(_draw(rng, s.n_images)) for s in samples]) for _ in range(bootstrap.resamples)]
        for name in list(measured):
            measured[f"{name}_ci95"] = np.percentile([draw[name] for draw in draws], INTERVAL).tolist()
    return measured


def _mean(measures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(one[name] for one in measures) / len(measures) for name in measures[0]}


def _draw(rng: np.random.Generator, n: int) -> np.ndarray:
    """(n,) how often each of n images is in one resample."""
    return np.bincount(rng.integers(n, size=n), minlength=n)


class _Sample:
    """Ranks in ascending order with their images; a resample is then a weighting of images."""

    def __init__(self, ranks: np.ndarray, owners: np.ndarray) -> None:
        order = np.argsort(ranks, kind="stable")
        self.ranks, self.owners = ranks[order], owners[order]
        self.n_images = int(owners.max()) + 1
        self.within = {k: int(np.searchsorted(self.ranks, k, "right")) for k in CUTOFFS}

    def measures(self, weights: np.ndarray) -> dict[str, float]:
        """The measures where image i counts `weights[i]` times; `weights` (n_images,) are whole numbers."""
        below = np.concatenate([[0], np.cumsum(weights[self.owners])])  # below[j]: the number of ranks before rank j
        total = below[-1]
        middle = np.searchsorted(below, [(total - 1) // 2, total // 2], "right") - 1
        values = {f"recall@{k}": 100 * below[count] / total for k, count in self.within.items()}
        values["median_rank"] = self.ranks[middle].mean()
        values["mean_rank"] = self.ranks @ np.diff(below) / total
        return {name: float(value) for name, value in values.items()}


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
    ours: Sequence[Ranks], theirs: Sequence[Ranks], owners: np.ndarray, columns: Columns, bootstrap: Bootstrap
) -> Mapping[str, float | list[float]]:
    """The sum of `columns` ((direction, recall@K or mean_rank), ...) of one system minus that of another, each the mean
    over its draws (trainings from several seeds), from `ranks` in one gallery, where sentence j is of `owners[j]`.

    A paired bootstrap resamples images, each with its sentences, the same for both systems, and the draws of each by
    themselves: `ci95` are its percentiles, `p` is the share of resamples in which the difference has not the sign of
    `difference`. Recalls are in percent.
    """
    rng = np.random.default_rng(bootstrap.seed)
    sentences = np.bincount(owners)
    systems = [[_by_image(one, owners, columns) for one in draws] for draws in (ours, theirs)]

    def minus(weights: np.ndarray, chosen: Sequence[np.ndarray]) -> float:
        totals = {"image_to_sentence": weights.sum()}
        scale = np.array([1 / totals.get(side, weights @ sentences) for side, _ in columns])
        means = [np.mean([weights @ one[i] @ scale for i in own]) for one, own in zip(systems, chosen, strict=True)]
        return float(means[0] - means[1])

    every = [np.arange(len(draws)) for draws in systems]
    difference = minus(np.ones(len(sentences)), every)
    resamples = np.array(
        [
            minus(_draw(rng, len(sentences)), [rng.integers(len(own), size=len(own)) for own in every])
            for _ in range(bootstrap.resamples)
        ]
    )
    interval = np.percentile(resamples, INTERVAL).tolist()
    return {"difference": difference, "ci95": interval, "p": float(np.mean(resamples * np.sign(difference) <= 0))}


def _by_image(ranks: Ranks, owners: np.ndarray, columns: Columns) -> np.ndarray:
    """(n, columns): what each image, or all its sentences together, adds to the sum that each column is a mean of."""
    found = []
    for direction, measure_name in columns:
        own = getattr(ranks, direction)
        name, _, cutoff = measure_name.partition("@")
        values = 100.0 * (own <= int(cutoff)) if name == "recall" else own.astype(float)
        found.append(values if direction == "image_to_sentence" else np.bincount(owners, values))
    return np.stack(found, axis=1)

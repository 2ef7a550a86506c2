"""Recall at K, median and mean rank in both directions, with bootstrap intervals; protocols."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.metrics.ranks import Ranks

CUTOFFS = (1, 5, 10)
TIES = "a tie counts against the model"
INTERVAL = (2.5, 97.5)
"""Percentiles of the bootstrap that bound a 95% interval."""
PROTOCOLS = ("all-sentences", "first-sentence")


def select_sentences(owners: np.ndarray, protocol: str) -> np.ndarray:
    """The sentences that are queries and gallery by `protocol`, of sentences of the images `owners` (m,): all (Karpathy
    and Fei-Fei 2015) or the first of each image (Gong et al. 2014)."""
    return np.arange(len(owners)) if protocol == "all-sentences" else np.unique(owners, return_index=True)[1]


@dataclass(frozen=True)
class Bootstrap:
    """`resamples` draws of the images with replacement, each image with its sentences."""

    resamples: int
    seed: int


def evaluate(ranks: Ranks, owners: np.ndarray, bootstrap: Bootstrap) -> dict[str, dict[str, float | list[float]]]:
    """The measures of each direction of `ranks`, where sentence j is of image `owners[j]`: name -> value, and with a
    bootstrap also name_ci95 -> [low, high]."""
    each = np.arange(len(ranks.image_to_sentence))
    return {
        "image_to_sentence": measure(ranks.image_to_sentence, each, bootstrap),
        "sentence_to_image": measure(ranks.sentence_to_image, owners, bootstrap),
    }


def recall_sum(ranks: Ranks) -> float:
    """The sum of recall@1, @5 and @10 of both directions in percent: 600 at best."""
    directions = (ranks.image_to_sentence, ranks.sentence_to_image)
    return float(sum(100 * np.mean(direction <= k) for direction in directions for k in CUTOFFS))


def mean_rank(ranks: Ranks) -> float:
    """The mean of both directions' mean ranks."""
    return float(np.mean([ranks.image_to_sentence.mean(), ranks.sentence_to_image.mean()]))


def recall_sums(ranks: Ranks) -> dict[str, float]:
    """The sum of each direction: 300 at best."""
    return {
        direction: float(sum(100 * np.mean(getattr(ranks, direction) <= k) for k in CUTOFFS))
        for direction in ("image_to_sentence", "sentence_to_image")
    }


def measure(ranks: np.ndarray, owners: np.ndarray, bootstrap: Bootstrap) -> dict[str, float | list[float]]:
    """The measures of `ranks` (k,), where rank j is of image `owners[j]`; every image from 0 on has at least one."""
    return average([(ranks, owners)], bootstrap)


def average(galleries: Sequence[tuple[np.ndarray, np.ndarray]], bootstrap: Bootstrap) -> dict[str, float | list[float]]:
    """The means of the measures over `galleries`, each the ranks and owners of `measure`, each resampled separately."""
    samples = [_Sample(ranks, owners) for ranks, owners in galleries]
    means = _mean([sample.measures(np.ones(sample.n_images, np.int64)) for sample in samples])
    measured: dict[str, float | list[float]] = {**means}
    if bootstrap.resamples:
        rng = np.random.default_rng(bootstrap.seed)
        draws = [_mean([s.measures(resample(rng, s.n_images)) for s in samples]) for _ in range(bootstrap.resamples)]
        for name in means:
            measured[f"{name}_ci95"] = np.percentile([draw[name] for draw in draws], INTERVAL).tolist()
    return measured


def _mean(measures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(one[name] for one in measures) / len(measures) for name in measures[0]}


def resample(rng: np.random.Generator, n: int) -> np.ndarray:
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

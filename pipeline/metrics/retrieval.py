"""Recall at K, median and mean rank in both directions, with bootstrap intervals: of a split, of its folds, and of a
random ranking (the row `Random` of Socher et al. 2014, Table 1); protocols.

Folds are equal parts of a split, each with its own gallery. COCO's test figures are means over five folds of 1,000
images each. Recall at K depends on the size of the gallery, so a mean over folds is comparable with galleries of a
fold's size, not with the gallery of the whole split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import InputError
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


@dataclass(frozen=True)
class Fold:
    """Slices of the split's `images` and `sentences`; sentence j of the fold is of the fold's image `owners[j]`."""

    images: slice
    sentences: slice
    owners: np.ndarray


def divide(owners: np.ndarray, count: int) -> list[Fold]:
    """`count` folds of consecutive images, of sizes that differ by at most one; `owners` (m,), ascending, is the image
    of each sentence. Raises InputError if there are fewer images than folds."""
    n = int(owners[-1]) + 1
    if count > n:
        raise InputError(f"{n} images cannot be divided into {count} folds; lower evaluate.folds")
    bounds = np.arange(count + 1) * n // count
    parts = np.searchsorted(owners, bounds)
    return [
        Fold(slice(int(a), int(b)), slice(int(c), int(d)), owners[c:d] - a)
        for a, b, c, d in zip(bounds, bounds[1:], parts, parts[1:], strict=False)
    ]


def measure_folds(folds: Sequence[Fold], ranks: Sequence[Ranks], bootstrap: Bootstrap) -> dict[str, Any]:
    """`mean_of_folds`, the means of the measures of each direction, with intervals that resample every fold separately;
    `each_fold`, the measures of each fold with its `n_images` and `n_sentences`, without intervals."""
    both = list(zip(folds, ranks, strict=True))
    galleries: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {
        "image_to_sentence": [(one.image_to_sentence, np.arange(len(one.image_to_sentence))) for one in ranks],
        "sentence_to_image": [(one.sentence_to_image, fold.owners) for fold, one in both],
    }
    similarity = [(one.sentence_similarity, fold.owners) for fold, one in both if one.sentence_similarity is not None]
    if len(similarity) == len(both):
        galleries["sentence_similarity"] = similarity
    plain = Bootstrap(0, bootstrap.seed)
    each = [
        {
            "n_images": len(one.image_to_sentence),
            "n_sentences": len(one.sentence_to_image),
            **{direction: measure(*ranked[number], plain) for direction, ranked in galleries.items()},
        }
        for number, one in enumerate(ranks)
    ]
    mean: dict[str, Any] = {direction: average(ranked, bootstrap) for direction, ranked in galleries.items()}
    mean["chance"] = _mean_of([chance(fold.owners) for fold in folds])
    return {"mean_of_folds": mean, "each_fold": each}


def _mean_of(every: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        side: {name: float(np.mean([one[side][name] for one in every])) for name in values}
        for side, values in every[0].items()
        if all(side in one for one in every)
    }


def chance(owners: np.ndarray) -> dict[str, dict[str, float]]:
    """The measures that a random ranking has on average, of each direction and, where every image has two sentences, of
    `sentence_similarity`; sentence j of `owners` (m,) is of image `owners[j]`.

    The median rank is that of all queries' ranks together.
    """
    counts, m = np.bincount(owners), len(owners)
    found = {
        "image_to_sentence": random_measures(counts, m),
        "sentence_to_image": random_measures(np.ones(m, np.int64), len(counts)),
    }
    if counts.min() > 1:
        found["sentence_similarity"] = random_measures(counts[owners] - 1, m - 1)
    return found


def random_measures(right: np.ndarray, total: int) -> dict[str, float]:
    """Of queries that each have `right` (q,) right answers among `total` in random order, by the place of the first.

    P(place > t) is the chance that the first t answers are wrong, the product of (total - right - j) / (total - j) over
    j from 0 to t - 1; its sum over t from 0 on, the mean place, is (total + 1) / (right + 1).
    """
    kinds, counts = np.unique(right, return_counts=True)
    shares, places = counts / counts.sum(), np.arange(total)
    wrong = np.maximum(total - kinds[:, None] - places, 0) / (total - places)
    later = np.concatenate([[1.0], shares @ np.cumprod(wrong, axis=1)])  # of all queries, P(place > t) for t from 0 on
    recalls = {f"recall@{k}": 100 * float(1 - later[min(k, total)]) for k in CUTOFFS}
    mean = float(shares @ ((total + 1) / (kinds + 1)))
    return {**recalls, "median_rank": float(np.argmax(later <= 0.5)), "mean_rank": mean}

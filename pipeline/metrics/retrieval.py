"""Recall at K, median rank and mean rank in both directions, with bootstrap intervals.

These measures are computed for a split, for the folds of a split, and for a random ranking (the row `Random` of Socher
et al. 2014, Table 1). A fold is one of several equal parts of a split, with its own gallery. For example, published
results on COCO are often means over five folds of 1,000 test images each. Recall at K depends on the size of the
gallery. A mean over folds is therefore comparable with results on galleries of the fold's size, but not with results on
the whole split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.metrics.ranks import Ranks

CUTOFFS = (1, 5, 10)
"""The values of K in recall@K."""
TIES = "a tie counts against the model"
"""The treatment of ties, in the words that the stored results of an evaluation contain."""
INTERVAL = (2.5, 97.5)
"""Percentiles of the bootstrap that bound a 95% interval."""
PROTOCOLS = ("all-sentences", "first-sentence")


def select_sentences(owners: np.ndarray, protocol: str) -> np.ndarray:
    """Return the row numbers of the sentences that `protocol` (one of PROTOCOLS) uses, both as queries and as
    candidates.

    `owners` (m,) are the images of all sentences. `all-sentences` selects all sentences (Karpathy and Fei-Fei 2015),
    and `first-sentence` selects the first sentence of each image (Gong et al. 2014).
    """
    return np.arange(len(owners)) if protocol == "all-sentences" else np.unique(owners, return_index=True)[1]


@dataclass(frozen=True)
class Bootstrap:
    """The settings of a bootstrap over images: the number of `resamples`, and the `seed`.

    A resample draws as many images as there are, with replacement. An image is drawn together with all of its
    sentences. With 0 resamples, no intervals are computed.
    """

    resamples: int
    seed: int


def evaluate(ranks: Ranks, owners: np.ndarray, bootstrap: Bootstrap) -> dict[str, dict[str, float | list[float]]]:
    """Measure both directions of `ranks`, where sentence j belongs to image `owners[j]`.

    Returns direction -> measures. The measures are recall@1, @5 and @10 in percent, `median_rank` and `mean_rank`.
    Unless `bootstrap` has 0 resamples, the 95% interval [low, high] of the measure NAME has the key NAME_ci95.
    """
    each = np.arange(len(ranks.image_to_sentence))
    return {
        "image_to_sentence": measure(ranks.image_to_sentence, each, bootstrap),
        "sentence_to_image": measure(ranks.sentence_to_image, owners, bootstrap),
    }


def recall_sum(ranks: Ranks) -> float:
    """Compute the sum of recall@1, @5 and @10 of both directions in percent, at most 600."""
    directions = (ranks.image_to_sentence, ranks.sentence_to_image)
    return float(sum(100 * np.mean(direction <= k) for direction in directions for k in CUTOFFS))


def mean_rank(ranks: Ranks) -> float:
    """Compute the mean of two mean ranks: of images as queries, and of sentences as queries."""
    return float(np.mean([ranks.image_to_sentence.mean(), ranks.sentence_to_image.mean()]))


def recall_sums(ranks: Ranks) -> dict[str, float]:
    """Compute the sum of recall@1, @5 and @10 of each direction in percent, at most 300. Return direction -> sum."""
    return {
        direction: float(sum(100 * np.mean(getattr(ranks, direction) <= k) for k in CUTOFFS))
        for direction in ("image_to_sentence", "sentence_to_image")
    }


def measure(ranks: np.ndarray, owners: np.ndarray, bootstrap: Bootstrap) -> dict[str, float | list[float]]:
    """Measure the `ranks` (k,) of k queries. Query j belongs to image `owners[j]`, and each image has at least one
    query.

    Returns recall@1, @5 and @10 in percent, `median_rank` and `mean_rank`. Unless `bootstrap` has 0 resamples, the 95%
    interval [low, high] of the measure NAME has the key NAME_ci95.
    """
    return average([(ranks, owners)], bootstrap)


def average(galleries: Sequence[tuple[np.ndarray, np.ndarray]], bootstrap: Bootstrap) -> dict[str, float | list[float]]:
    """Compute the means of the measures over several galleries. The keys of the result are described in `measure`.

    A gallery is given by the ranks (k,) of its k queries and the images (k,) to which these queries belong. The
    bootstrap resamples the images of each gallery separately.
    """
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
    """Draw one resample of n images with replacement. Return how often each image is drawn, (n,)."""
    return np.bincount(rng.integers(n, size=n), minlength=n)


class _Sample:
    """The ranks of the queries of one gallery in ascending order, with the images to which the queries belong.

    The method `measures` computes the measures of a resample, which is given by a weight for each image.
    """

    def __init__(self, ranks: np.ndarray, owners: np.ndarray) -> None:
        order = np.argsort(ranks, kind="stable")
        self.ranks = ranks[order]
        self.owners = owners[order]
        self.n_images = int(owners.max()) + 1
        self.within = {k: int(np.searchsorted(self.ranks, k, "right")) for k in CUTOFFS}

    def measures(self, weights: np.ndarray) -> dict[str, float]:
        """Compute recall@1, @5 and @10 in percent, the median rank and the mean rank of a resample, in which image i
        and its queries count `weights[i]` times.

        `weights` (n_images,) are whole numbers.
        """
        below = np.concatenate([[0], np.cumsum(weights[self.owners])])  # below[j] is the weight of the first j ranks.
        total = below[-1]
        middle = np.searchsorted(below, [(total - 1) // 2, total // 2], "right") - 1
        values = {f"recall@{k}": 100 * below[count] / total for k, count in self.within.items()}
        values["median_rank"] = self.ranks[middle].mean()
        values["mean_rank"] = self.ranks @ np.diff(below) / total
        return {name: float(value) for name, value in values.items()}


@dataclass(frozen=True)
class Fold:
    """A fold of a split: the slices of its `images` and of its `sentences` in the split.

    Sentence j of the fold belongs to image `owners[j]` of the fold.
    """

    images: slice
    sentences: slice
    owners: np.ndarray


def split_into_folds(owners: np.ndarray, count: int) -> list[Fold]:
    """Divide a split into `count` folds of consecutive images, whose sizes differ by at most one.

    `owners` (m,) are the images of the split's sentences, in ascending order. Raises InputError if there are fewer
    images than folds.
    """
    n = int(owners[-1]) + 1
    if count > n:
        raise InputError(f"{n} images cannot be divided into {count} folds. Lower evaluate.folds to {n} or less.")
    image_bounds = np.arange(count + 1) * n // count
    sentence_bounds = np.searchsorted(owners, image_bounds)
    return [
        Fold(slice(int(a), int(b)), slice(int(c), int(d)), owners[c:d] - a)
        for a, b, c, d in zip(image_bounds, image_bounds[1:], sentence_bounds, sentence_bounds[1:], strict=False)
    ]


def measure_folds(folds: Sequence[Fold], ranks: Sequence[Ranks], bootstrap: Bootstrap) -> dict[str, Any]:
    """Measure each fold, and return `mean_of_folds` and `each_fold`. `ranks` has the ranks within each of the `folds`.

    `mean_of_folds` has the means of the measures for each direction, with intervals from a bootstrap that resamples
    each fold separately, and the mean `chance` level. `each_fold` is a list with the measures of each fold, without
    intervals, and with the numbers `n_images` and `n_sentences` of the fold. If all `ranks` have sentence similarity,
    the means and each fold also have the measures of sentence similarity, under the key `sentence_similarity`.
    """
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
    """Compute the expected measures of a random ranking. Return direction -> measures.

    Sentence j belongs to image `owners[j]`, for `owners` (m,). The measures are recall@1, @5 and @10 in percent,
    `median_rank` and `mean_rank`. The median rank is the median of the ranks of all queries together. If each image has
    at least two sentences, the result also has the measures of `sentence_similarity`.
    """
    counts = np.bincount(owners)
    m = len(owners)
    found = {
        "image_to_sentence": random_measures(counts, m),
        "sentence_to_image": random_measures(np.ones(m, np.int64), len(counts)),
    }
    if counts.min() > 1:
        found["sentence_similarity"] = random_measures(counts[owners] - 1, m - 1)
    return found


def random_measures(right: np.ndarray, total: int) -> dict[str, float]:
    """Compute the expected measures of q queries, if the `total` items of the gallery are shuffled for each query.

    Query i has `right[i]` right items (q,), and its rank is the position of the first right item, from 1. P(rank > t)
    is the probability that the first t items are wrong, which is the product of (total - right - j) / (total - j) over
    j from 0 to t - 1. The mean rank is the sum of P(rank > t) over all t from 0, which is (total + 1) / (right + 1).
    The median rank is the smallest t at which the mean of P(rank > t) over the queries is at most 0.5.
    """
    kinds, counts = np.unique(right, return_counts=True)
    shares = counts / counts.sum()
    positions = np.arange(total)
    wrong = np.maximum(total - kinds[:, None] - positions, 0) / (total - positions)
    # P(rank > t) over all queries, for t = 0, 1, ...
    later = np.concatenate([[1.0], shares @ np.cumprod(wrong, axis=1)])
    recalls = {f"recall@{k}": 100 * float(1 - later[min(k, total)]) for k in CUTOFFS}
    mean = float(shares @ ((total + 1) / (kinds + 1)))
    return {**recalls, "median_rank": float(np.argmax(later <= 0.5)), "mean_rank": mean}

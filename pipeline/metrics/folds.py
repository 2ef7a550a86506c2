"""Folds: equal parts of a split, each with its own gallery, and the mean of the measures over them; and what a random
ranking gives, the expected values behind the row `Random` of Socher et al. 2014, Table 1.

COCO's test figures are reported this way: five times 1,000 images of 5,000. Recall at K depends on the size of the
gallery, so a mean over folds is comparable with galleries of a fold's size, not with that of the whole split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.metrics.ranks import Ranks
from pipeline.metrics.retrieval import CUTOFFS, Bootstrap, average, measure


@dataclass(frozen=True)
class Fold:
    """Some `images` and all their `sentences`, as slices of the split's; sentence j of the fold is of its image
    `owners[j]`."""

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

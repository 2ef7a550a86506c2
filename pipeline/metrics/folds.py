"""Folds: equal parts of a split, each with its own gallery, and the mean of the measures over them.

COCO's test figures are reported this way: five times 1,000 images of 5,000. Recall at K depends on the size of the
gallery, so a mean over folds is comparable with galleries of a fold's size, not with that of the whole split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.metrics.chance import chance
from pipeline.metrics.ranks import Ranks
from pipeline.metrics.retrieval import Bootstrap, average, measure


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
    galleries = {
        "image_to_sentence": [(one.image_to_sentence, np.arange(len(one.image_to_sentence))) for one in ranks],
        "sentence_to_image": [(one.sentence_to_image, fold.owners) for fold, one in both],
    }
    if all(one.sentence_similarity is not None for one in ranks):
        galleries["sentence_similarity"] = [(one.sentence_similarity, fold.owners) for fold, one in both]
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

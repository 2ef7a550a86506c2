"""Folds: a split in equal parts, each with its own gallery, and the mean of the measures over them.

COCO's test figures are given this way: five times 1,000 images of 5,000. Recall at K depends on the size of the
gallery, so that a mean over folds is comparable with other galleries of a fold's size, and not with the whole split's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.metrics.ranks import Ranks
from pipeline.metrics.retrieval import Bootstrap, average, measure


@dataclass(frozen=True)
class Fold:
    """Some `images` and all of their `sentences`, as slices of the split's; sentence j of the fold is of its image
    `owners[j]`."""

    images: slice
    sentences: slice
    owners: np.ndarray


def divide(owners: np.ndarray, count: int) -> list[Fold]:
    """`count` folds of consecutive images whose sizes differ by one at most; `owners` (m,), ascending, is the image of
    each sentence. Raises InputError where there are fewer images than folds."""
    n = int(owners[-1]) + 1
    if count > n:
        raise InputError(f"{n} images cannot be divided into {count} folds; make evaluate.folds smaller")
    bounds = np.arange(count + 1) * n // count
    parts = np.searchsorted(owners, bounds)
    return [
        Fold(slice(int(a), int(b)), slice(int(c), int(d)), owners[c:d] - a)
        for a, b, c, d in zip(bounds, bounds[1:], parts, parts[1:], strict=False)
    ]


def measure_folds(folds: Sequence[Fold], ranks: Sequence[Ranks], bootstrap: Bootstrap) -> dict[str, Any]:
    """`mean_of_folds`, the measures of each direction with intervals in which every fold is drawn from itself, and
    `each_fold`, those of each one with its `n_images` and `n_sentences`, without intervals."""
    plain = Bootstrap(0, bootstrap.seed)
    both = [
        {
            "image_to_sentence": (rank.image_to_sentence, np.arange(len(rank.image_to_sentence))),
            "sentence_to_image": (rank.sentence_to_image, fold.owners),
        }
        for fold, rank in zip(folds, ranks, strict=True)
    ]
    each = [
        {
            "n_images": len(rank.image_to_sentence),
            "n_sentences": len(rank.sentence_to_image),
            **{direction: measure(*ranked, plain) for direction, ranked in directions.items()},
        }
        for directions, rank in zip(both, ranks, strict=True)
    ]
    mean = {direction: average([fold[direction] for fold in both], bootstrap) for direction in both[0]}
    return {"mean_of_folds": mean, "each_fold": each}

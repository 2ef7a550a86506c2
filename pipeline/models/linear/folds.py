"""Folds: a fixed division of every split's images; of their moments sets of several sizes and draws are made."""

import numpy as np


def assign_folds(splits: np.ndarray, count: int, order: str, seed: int) -> np.ndarray:
    """(n,) the fold, 0 to `count` - 1, of each image with split `splits[i]`: equal parts of every split.

    With `order` listed the first images of a split are fold 0, the next ones fold 1, and so on; with `shuffled`
    they are drawn at random by `seed`.
    """
    folds = np.empty(len(splits), np.int64)
    rng = np.random.default_rng(seed)
    for split in sorted(set(splits)):
        members = np.flatnonzero(splits == split)
        if order == "shuffled":
            members = rng.permutation(members)
        folds[members] = np.arange(len(members)) * count // len(members)
    return folds

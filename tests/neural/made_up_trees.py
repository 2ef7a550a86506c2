"""Trees over the sentences, and regions of the images, of the small made-up collection."""

from typing import NamedTuple

import numpy as np

from pipeline.text.sequences import Tokens
from pipeline.text.trees import Trees, pack

NOUN_PHRASE = 0


class Blocks(NamedTuple):
    """Regions of several images, as pipeline.models.neural.task.RegionBlock has them."""

    features: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray


class Shown:
    """The regions of each image, `features` (n, r, dim): first the whole of it, then each of its things."""

    def __init__(self, features: np.ndarray) -> None:
        self.features = features

    def __len__(self) -> int:
        return len(self.features)

    def packed(self, rows: np.ndarray) -> Blocks:
        n, each = len(rows), self.features.shape[1]
        boxes, scores = np.tile(np.float32([[0, 0, 30, 20]]), (each * n, 1)), np.ones(each * n, np.float32)
        return Blocks(self.features[rows].reshape(each * n, -1), boxes, scores, each * np.arange(n + 1))


def grow(view: str, tokens: Tokens) -> Trees:
    """Over sentences of four words a b c d: in dependency trees b and c depend on a, d on c; phrase trees are
    (S (NP a) (X (NP b) c d))."""
    trees = []
    for a, b, c, d in map(np.ndarray.tolist, tokens):
        if view == "dependency-trees":
            trees.append([(-1, a, 0), (0, b, 1), (0, c, 2), (2, d, 1)])
        else:
            leaves = [(4, a, 2), (5, b, 2), (6, c, 2), (6, d, 2)]
            trees.append([*leaves, (7, -1, NOUN_PHRASE), (6, -1, NOUN_PHRASE), (7, -1, 1), (-1, -1, 1)])
    return pack(trees)

"""Trees over the sentences, and regions of the images, of the small made-up collection; random trees."""

from typing import NamedTuple

import numpy as np

from pipeline.text.sequences import Tokens
from pipeline.text.trees import Trees, pack

NOUN_PHRASE = 0


class Block(NamedTuple):
    """A RegionBlock of several images."""

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

    def packed(self, rows: np.ndarray) -> Block:
        n, each = len(rows), self.features.shape[1]
        boxes, scores = np.tile(np.float32([[0, 0, 30, 20]]), (each * n, 1)), np.ones(each * n, np.float32)
        return Block(self.features[rows].reshape(each * n, -1), boxes, scores, each * np.arange(n + 1))


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


def draw_dependencies(rng: np.random.Generator, lengths: list[int], words: int, labels: int) -> Trees:
    """Dependency trees in which any word may depend on any other; words from 0 to `words`, labels to `labels`."""
    trees = []
    for length in lengths:
        order = rng.permutation(length)
        parents = np.full(length, -1)
        for place in range(1, length):
            parents[order[place]] = order[rng.integers(max(0, place - 4), place)]
        trees.append([(int(p), int(rng.integers(words + 1)), int(rng.integers(labels + 1))) for p in parents])
    return pack(trees)


def draw_phrases(rng: np.random.Generator, lengths: list[int], words: int, labels: int) -> Trees:
    """Phrase trees of one to four parts to a phrase."""
    return pack([_phrases(rng, length, words, labels) for length in lengths])


def _phrases(rng: np.random.Generator, length: int, words: int, labels: int) -> list[tuple[int, int, int]]:
    above, inner = [-1] * length, list(range(length))
    while len(inner) > 1 or (length and len(above) == length):
        first = int(rng.integers(len(inner)))
        parts = inner[first : first + int(rng.integers(1, 5))]
        for part in parts:
            above[part] = len(above)
        inner[first : first + len(parts)] = [len(above)]
        above.append(-1)
    word = [int(rng.integers(words + 1)) if i < length else -1 for i in range(len(above))]
    return [(above[i], word[i], int(rng.integers(labels + 1))) for i in range(len(above))]

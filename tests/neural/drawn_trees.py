"""Random trees over the words of sentences."""

import numpy as np

from pipeline.text.trees import Trees, pack


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

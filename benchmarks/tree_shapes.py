"""Functions that draw synthetic trees over sentences, for benchmarks."""

import numpy as np

WORDS = 5000
RELATIONS = 40


def draw_dependencies(rng: np.random.Generator, length: int) -> list[tuple[int, int, int]]:
    """Draw a projective dependency tree over `length` words. Return a tuple for each word: the number of its parent (-1
    for the root), the number of the word in the vocabulary, and the number of its relation. Words and relations follow
    Zipf's law.
    """
    parents = np.full(length, -1)
    spans = [(0, length, -1)]
    while spans:
        start, stop, parent = spans.pop()
        if start == stop:
            continue
        head = int(rng.integers(start, stop))
        parents[head] = parent
        for first, last in ((start, head), (head + 1, stop)):
            cut = int(rng.integers(first, last + 1))
            spans += [(first, cut, head), (cut, last, head)]
    return [(int(p), _zipf(rng, WORDS), _zipf(rng, RELATIONS)) for p in parents]


def draw_phrases(rng: np.random.Generator, length: int) -> list[tuple[int, int, int]]:
    """Draw a tree of phrases with two or three parts each, over `length` words. Return a tuple for each word, and then
    for each phrase: the number of its parent node (-1 for the root), the number of the word in the vocabulary (-1 for a
    phrase), and the label 0.
    """
    inner: list[int] = []
    up = {}

    def phrase(start: int, stop: int) -> int:
        if stop - start == 1:
            return start
        cuts = sorted(rng.choice(np.arange(start + 1, stop), min(stop - start - 1, int(rng.integers(1, 3))), False))
        parts = [phrase(a, b) for a, b in zip([start, *cuts], [*cuts, stop], strict=True)]
        inner.append(len(inner))
        up.update(dict.fromkeys(parts, length + inner[-1]))
        return length + inner[-1]

    up[phrase(0, length)] = -1
    return [(up[i], _zipf(rng, WORDS) if i < length else -1, 0) for i in range(length + len(inner))]


def _zipf(rng: np.random.Generator, limit: int) -> int:
    return int(min(rng.zipf(1.3) - 1, limit - 1))

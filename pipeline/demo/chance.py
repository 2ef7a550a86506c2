"""Drawing lots among options of any type."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")
USUAL = 0.6  # how often the first of several options is taken where it is the usual one


def pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    """Each option as often as the others."""
    return options[int(rng.integers(len(options)))]


def pick_weighted(rng: np.random.Generator, weights: Mapping[T, float]) -> T:
    """Each option in proportion to its weight."""
    shares = np.fromiter(weights.values(), dtype=float)
    return list(weights)[rng.choice(len(shares), p=shares / shares.sum())]


def pick_usual(rng: np.random.Generator, options: Sequence[T]) -> T:
    """The first option in `USUAL` of the cases, else one of the others."""
    if len(options) == 1 or rng.random() < USUAL:
        return options[0]
    return pick(rng, options[1:])

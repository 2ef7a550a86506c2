"""Weights of a score-level ensemble: the scores of several models added up, each times its weight, chosen on dev."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.metrics.ranks import rank_scores
from pipeline.metrics.retrieval import recall_sum

Judge = Callable[[tuple[float, ...]], float]
"""What a combination with these weights is worth; the greater the better."""


@dataclass(frozen=True)
class MemberWeights:
    """`values`, one for each member, add up to 1; `judged` is what they are worth, `trials` how many were judged."""

    values: tuple[float, ...]
    judged: float
    trials: int


def choose_weights(judge: Judge, members: int, grid: Sequence[float]) -> MemberWeights:
    """Search from equal weights, and from each member alone: one member after another, over `grid`, until no member's
    weight can be bettered; the best of what these searches end with.

    Only ratios matter, so a weight of the grid is relative to the others'. Of equally good weights, those that were
    found first. Raises InputError where no value of the grid is positive.
    """
    if not max(grid, default=0) > 0 or min(grid) < 0:
        raise InputError("the grid of an ensemble's weights needs a positive value and no negative one; correct it")
    judged: dict[tuple[float, ...], float] = {}

    def worth(trial: tuple[float, ...]) -> float:
        key = _scaled(trial)
        if key not in judged:
            judged[key] = judge(key)
        return judged[key]

    alone = [tuple(float(member == place) for place in range(members)) for member in range(members)]
    best = max((_climb(worth, start, grid) for start in [(1.0,) * members, *alone]), key=worth)
    return MemberWeights(_scaled(best), worth(best), len(judged))


def _climb(worth: Judge, start: tuple[float, ...], grid: Sequence[float]) -> tuple[float, ...]:
    """The weights from which no change of one member's is for the better."""
    best, improved = start, True
    while improved:
        improved = False
        for member in range(len(best)):
            for value in grid:
                trial = (*best[:member], float(value), *best[member + 1 :])
                if any(trial) and worth(trial) > worth(best):
                    best, improved = trial, True
    return best


def _scaled(weights: Sequence[float]) -> tuple[float, ...]:
    """The same ratios with a sum of 1."""
    return tuple(round(weight / sum(weights), 12) for weight in weights)


def combine_scores(
    scores: Sequence[np.ndarray], owners: np.ndarray, grid: Sequence[float], judged: Callable[[], Any]
) -> MemberWeights:
    """Weights of members with the `scores` (n, m) each, of n images by m sentences, sentence j being of image
    `owners[j]`. The grid is in units of one over the standard deviation of a member's scores, so that it suits members
    of any scale; `judged` is called after each trial."""
    deviations = [float(part.std(dtype=np.float64)) or 1.0 for part in scores]
    judge = judge_scores(
        [part / np.float32(deviation) for part, deviation in zip(scores, deviations, strict=True)], owners
    )

    def judge_and_tell(weights: tuple[float, ...]) -> float:
        worth = judge(weights)
        judged()
        return worth

    found = choose_weights(judge_and_tell, len(scores), grid)
    values = [value / deviation for value, deviation in zip(found.values, deviations, strict=True)]
    return MemberWeights(_scaled(values), found.judged, found.trials)


def judge_scores(scores: Sequence[np.ndarray], owners: np.ndarray) -> Judge:
    """The recall sum of both directions of a weighted sum of `scores`, each (n, m) of n images by m sentences, where
    sentence j is of image `owners[j]`; ties count against the combination."""

    def judge(weights: tuple[float, ...]) -> float:
        total = np.zeros(scores[0].shape, np.float32)
        for weight, part in zip(weights, scores, strict=True):
            if weight:
                total += np.float32(weight) * part
        return recall_sum(rank_scores(total, owners))

    return judge

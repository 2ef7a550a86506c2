"""The weights of an ensemble, whose score is the weighted sum of its members' scores, chosen on dev."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.metrics.ranks import rank_scores
from pipeline.metrics.retrieval import recall_sum

Judge = Callable[[tuple[float, ...]], float]
"""The score of a combination with these weights; higher is better."""


@dataclass(frozen=True)
class MemberWeights:
    """`values`, one for each member, add up to 1; `judged` is their score, `trials` the number of combinations
    tried."""

    values: tuple[float, ...]
    judged: float
    trials: int


def choose_weights(judge: Judge, members: int, grid: Sequence[float]) -> MemberWeights:
    """The best weights of coordinate searches over `grid`, from equal weights and from each member alone.

    A search changes one member's weight after another until no change is better; of equally good weights, the first
    found are kept. Only ratios matter. `grid` has a positive value and no negative one.
    """
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
    """The weights reached from `start` that no change of one member's weight improves."""
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
    scores: Sequence[np.ndarray], owners: np.ndarray, grid: Sequence[float], after_trial: Callable[[], object]
) -> MemberWeights:
    """Weights of members with the `scores` (n, m) each, of n images by m sentences, sentence j being of image
    `owners[j]`. The grid is relative to one over the standard deviation of a member's scores, so that it suits members
    of any scale; `after_trial` is called after each trial."""
    deviations = [float(part.std(dtype=np.float64)) or 1.0 for part in scores]
    scaled = [part / np.float32(deviation) for part, deviation in zip(scores, deviations, strict=True)]
    chosen = choose_weights(judge_scores(scaled, owners, after_trial), len(scores), grid)
    values = [value / deviation for value, deviation in zip(chosen.values, deviations, strict=True)]
    return replace(chosen, values=_scaled(values))


def judge_scores(
    scores: Sequence[np.ndarray], owners: np.ndarray, after_trial: Callable[[], object] = lambda: None
) -> Judge:
    """The recall sum of both directions for a weighted sum of `scores`, as `combine_scores` has them."""

    def judge(weights: tuple[float, ...]) -> float:
        total = np.zeros(scores[0].shape, np.float32)
        for weight, part in zip(weights, scores, strict=True):
            if weight:
                total += np.float32(weight) * part
        after_trial()
        return recall_sum(rank_scores(total, owners))

    return judge

"""An ensemble, whose score is the weighted sum of its members' scores: its weights, chosen on dev, and its vectors.

    S = sum over members of weight_k S_k

Members with one vector an item are put side by side. If some members are multi-vector, so is the joined model: its
globals are the vectors of the other members and the multi-vector members' globals, side by side. Region vectors, which
are of the same regions, are side by side too; a word has one row for each multi-vector member, zero outside that
member's columns, so that each member chooses its own best region. Word rows carry the weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.metrics.ranks import rank_scores
from pipeline.metrics.retrieval import recall_sum
from pipeline.multivectors import Items, MultiVectors, ScoreRule
from pipeline.ragged import offsets_of, runs

Judge = Callable[[tuple[float, ...]], float]
"""The score of a combination with these weights; higher is better."""
Rules = Sequence[ScoreRule | None]
"""How each member scores: by a rule, or, with one vector an item (None), by inner products."""


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
    scores: Sequence[np.ndarray], owners: np.ndarray, grid: Sequence[float], after_trial: Callable[[], Any]
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
    scores: Sequence[np.ndarray], owners: np.ndarray, after_trial: Callable[[], Any] = lambda: None
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


def joint_rule(rules: Rules) -> ScoreRule | None:
    """The rule of the joined vectors; a mean over words becomes a sum of word vectors divided by their number. The
    members all score words by their best region, or all by positive products."""
    sums = [rule.sum for rule in rules if rule]
    return ScoreRule("positive" if "positive" in sums else "words", 1.0) if sums else None


def join_vectors(vectors: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """(n, sum of c) the members' unit vectors (n, c) side by side, each scaled by the square root of its weight.

    Their inner products are the weighted sums of the members' scores; if the weights add up to 1, they have unit
    length.
    """
    return np.hstack([np.sqrt(np.float32(w)) * part for w, part in zip(weights, vectors, strict=True)])


def join_images(parts: Sequence[Items], weights: Sequence[float], rules: Rules) -> Items:
    """The joined images from each member's, which all have the same regions."""
    several = [part for part, rule in zip(parts, rules, strict=True) if rule]
    if not several:
        return join_vectors(parts, weights)
    vectors = np.hstack([one.vectors for one in several])
    return replace(several[0], vectors=vectors, globals=_globals(parts, weights, rules))


def join_sentences(parts: Sequence[Items], weights: Sequence[float], rules: Rules) -> Items:
    """The joined sentences from each member's."""
    several = [member for member in zip(parts, weights, rules, strict=True) if member[2]]
    if not several:
        return join_vectors(parts, weights)
    offsets = offsets_of(sum(part.lengths for part, _, _ in several))
    vectors = np.zeros((offsets[-1], sum(part.vectors.shape[1] for part, _, _ in several)), np.float32)
    column, before = 0, offsets[:-1]
    for part, weight, rule in several:
        scale = weight / part.lengths[part.owners, None] if rule.sum == "mean-words" else weight
        width = part.vectors.shape[1]
        vectors[runs(before, part.lengths), column : column + width] = part.vectors * scale
        column, before = column + width, before + part.lengths
    return MultiVectors(vectors, offsets, _globals(parts, weights, rules))


def _globals(parts: Sequence[Items], weights: Sequence[float], rules: Rules) -> np.ndarray:
    """(n, g) the members' vectors and globals side by side; one column of zeros if there are none."""
    scaled = [
        (part.globals, weight * rule.global_weight) if rule else (part, weight)
        for part, weight, rule in zip(parts, weights, rules, strict=True)
        if not rule or rule.global_weight
    ]
    return join_vectors(*zip(*scaled, strict=True)) if scaled else np.zeros((len(parts[0]), 1), np.float32)

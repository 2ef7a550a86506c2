"""The vectors of several models joined into those of one, whose score is the weighted sum of theirs.

    S = sum over members of weight_k S_k

Members with one vector an item are put side by side. If some members are multi-vector, so is the joined model: its
globals are the vectors of the other members and the multi-vector members' globals, side by side. Region vectors, which
are of the same regions, are side by side too; a word has one row for each multi-vector member, zero outside that
member's columns, so that each member chooses its own best region. Word rows carry the weights.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeline.errors import UsageError
from pipeline.multivectors import Items, MultiVectors, ScoreRule
from pipeline.ragged import offsets_of, runs

Rules = Sequence[ScoreRule | None]
"""How each member scores: by a rule, or, with one vector an item (None), by inner products."""


def joint_rule(rules: Rules) -> ScoreRule | None:
    """The rule of the joined vectors; a mean over words becomes a sum of word vectors divided by their number. Raises
    UsageError if some members score words by their best region and others by positive products."""
    positive = {rule.sum == "positive" for rule in rules if rule}
    if len(positive) > 1:
        raise UsageError("an ensemble joins members that score by words, or by positive products, but not both")
    return ScoreRule("positive" if positive.pop() else "words", 1.0) if positive else None


def join_vectors(vectors: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """(n, sum of c) the members' unit vectors (n, c) side by side, each scaled by the square root of its weight.

    Their inner products are the weighted sums of the members' scores; if the weights add up to 1, they have unit
    length.
    """
    return np.hstack([np.sqrt(np.float32(w)) * part for w, part in zip(weights, vectors, strict=True)])


def join_images(parts: Sequence[Items], weights: Sequence[float], rules: Rules) -> Items:
    """The joined images from each member's. Raises UsageError if members have different regions."""
    several = [part for part, rule in zip(parts, rules, strict=True) if rule]
    if not several:
        return join_vectors(parts, weights)
    if any(not np.array_equal(one.offsets, several[0].offsets) for one in several):
        raise UsageError("the multi-vector members have different regions; train them on the same ones")
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

"""An ensemble some of whose members score by fragments, again as sets of fragments: one index and one evaluator.

    S = sum over all members of weight_k S_k

Members of one vector each, and the globals of the others, stand side by side in the joined globals. The members' region
vectors stand side by side too, as they are of the same regions; a word has one row for each member of fragments, zero
outside that member's columns, so that it takes its best region by that member alone. Word rows carry the weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import UsageError
from pipeline.metrics.combination import join_vectors
from pipeline.metrics.fragment_scores import FragmentSets, ScoreRule
from pipeline.models.linear.ensemble import Ensemble


def joint_rule(rules: Sequence[ScoreRule]) -> ScoreRule:
    """How joined sets compare: means over words become sums of words that are divided by their number.

    Raises UsageError where the best regions of words are to be added to sums of positive products.
    """
    positive = {rule.sum == "positive" for rule in rules}
    if len(positive) > 1:
        raise UsageError("an ensemble joins members that score by words, or by positive products, but not both")
    return ScoreRule("positive" if True in positive else "words", 1.0)


def join_images(parts: Sequence[np.ndarray | FragmentSets], weights: Sequence[float], rules: Mapping) -> FragmentSets:
    """The images' sets; `parts` are each member's, vectors (n, c) or sets, and `rules` those of the latter, by place.

    Raises UsageError where members have different regions.
    """
    sets = [parts[place] for place in rules]
    if any(not np.array_equal(one.offsets, sets[0].offsets) for one in sets):
        raise UsageError("the members of fragments have different regions; train them on the same ones")
    return FragmentSets(np.hstack([one.vectors for one in sets]), sets[0].offsets, _globals(parts, weights, rules))


def join_sentences(
    parts: Sequence[np.ndarray | FragmentSets], weights: Sequence[float], rules: Mapping
) -> FragmentSets:
    """The sentences' sets, likewise."""
    sets = [parts[place] for place in rules]
    lengths = np.array([one.lengths for one in sets])  # (members of fragments, m)
    offsets = np.concatenate([[0], np.cumsum(lengths.sum(axis=0))])
    vectors = np.zeros((offsets[-1], sum(one.vectors.shape[1] for one in sets)), np.float32)
    column, before = 0, offsets[:-1]
    for (place, rule), one in zip(rules.items(), sets, strict=True):
        owners = np.repeat(np.arange(len(one)), one.lengths)
        scale = weights[place] / one.lengths[owners] if rule.sum == "mean-words" else weights[place]
        rows = before[owners] + np.arange(len(owners)) - one.offsets[owners]
        width = one.vectors.shape[1]
        vectors[rows, column : column + width] = one.vectors * np.broadcast_to(scale, len(rows))[:, None]
        column, before = column + width, before + one.lengths
    return FragmentSets(vectors, offsets, _globals(parts, weights, rules))


def _globals(parts: Sequence[np.ndarray | FragmentSets], weights: Sequence[float], rules: Mapping) -> np.ndarray:
    """(n, g) the members' vectors and globals side by side; one column of zeros where there are none."""
    scaled = []
    for place, (part, weight) in enumerate(zip(parts, weights, strict=True)):
        if place not in rules:
            scaled.append((part, weight))
        elif rules[place].global_weight:
            scaled.append((part.globals, weight * rules[place].global_weight))
    count = len(parts[next(iter(rules))])
    return join_vectors(*zip(*scaled, strict=True)) if scaled else np.zeros((count, 1), np.float32)


class FragmentEnsemble(Ensemble):
    """See the module; otherwise as Ensemble and as pipeline.models.neural.fragment_models.FragmentModel."""

    kind: ClassVar[str] = "fragments"

    @property
    def rules(self) -> dict[int, ScoreRule]:
        """Place of each member of fragments -> its rule."""
        return {k: member.model.rule for k, member in enumerate(self.members) if hasattr(member.model, "rule")}

    @property
    def rule(self) -> ScoreRule:
        return joint_rule(list(self.rules.values()))

    @property
    def region_encoders(self) -> tuple[str, ...]:
        """Raises UsageError where members take regions of different encoders."""
        found = {self.members[place].model.region_encoders for place in self.rules}
        if len(found) > 1:
            raise UsageError("the members of fragments take regions of different encoders; train them on the same ones")
        return found.pop()

    def embed_image_sets(self, features: Mapping[str, np.ndarray], regions: Any) -> FragmentSets:
        """One set an image, from its `features` and its `regions`."""
        rules = self.rules
        parts = [
            one.model.embed_image_sets(features, regions) if place in rules else one.model.embed_images(features)
            for place, one in enumerate(self.members)
        ]
        return join_images(parts, self.weights, rules)

    def embed_sentence_sets(self, sentences: Mapping[str, Any]) -> FragmentSets:
        """One set a sentence, from the same sentences in each of `views`."""
        rules = self.rules
        parts = [
            (one.model.embed_sentence_sets if place in rules else one.model.embed_sentences)(
                sentences[one.model.sentence_view]
            )
            for place, one in enumerate(self.members)
        ]
        return join_sentences(parts, self.weights, rules)

"""Models that are not trained themselves: `zero-shot` and ensembles.

`zero-shot` uses the space that an image encoder and a text encoder, such as the encoders of CLIP, share already. The
score of an ensemble is the weighted sum of the scores of its members, S = sum over k of weight_k S_k.

If all members have one vector per image and per sentence, these vectors are put side by side. A multi-vector member has
a vector for each region of an image and for each word of a sentence. It may also have globals, which are one further
vector for each image and for each sentence. If a member is multi-vector, the ensemble is multi-vector too:

- The globals of the ensemble are the vectors of the members with one vector and the globals of the multi-vector
  members, side by side.
- The region vectors of all multi-vector members belong to the same regions and are put side by side.
- A word has one row for each multi-vector member. The row is zero outside the columns of this member, so that each
  member chooses its own best region for the word. The row is multiplied by the weight of this member.

The weights of the members are chosen on dev.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pipeline.compute.multivectors import Items, MultiVectors, ScoreRule, one_vector_each, several_vectors_each
from pipeline.compute.precision import require_finite, scale_to_unit_length, to_numpy
from pipeline.compute.ragged import offsets_of, runs
from pipeline.config.stored import restore
from pipeline.metrics.ranks import rank_scores
from pipeline.metrics.retrieval import recall_sum
from pipeline.models.joint_model import (
    Features,
    JointModel,
    RegionSource,
    Sentences,
    Settings,
    embed_images,
    is_multi_vector,
    read_list,
    read_number,
    read_setting,
    require_vectors,
)

if TYPE_CHECKING:
    import torch


class ZeroShot:
    """A model without training, whose score is the cosine of the vectors of one image encoder and one text encoder."""

    sentence_view: str = "vectors"
    metric: str = "inner_product"
    multi_vector: bool = False
    rule: ScoreRule | None = None
    region_encoders: tuple[str, ...] = ()

    def __init__(self, encoder: str, text_encoder: str) -> None:
        self.encoders = (encoder,)
        self.text_encoders = (text_encoder,)

    def to(self, device: "torch.device") -> Self:
        """Return this model unchanged, because it computes nothing on a device."""
        return self

    def embed_images(self, features: Features, regions: RegionSource | None = None) -> np.ndarray:
        """Return the features of the image encoder, scaled to unit length, (n, dim) float32. Rows of zeros stay zero.
        `features` are not changed, and `regions` are not read.

        Raises IntegrityError if a feature is not finite.
        """
        return _unit(self.encoders[0], features[self.encoders[0]][:])

    def embed_sentences(self, sentences: "Sentences") -> np.ndarray:
        """Return the vectors of the text encoder, scaled to unit length, (n, dim) float32. Rows of zeros stay zero.

        Raises IntegrityError if a vector is not finite.
        """
        vectors = require_vectors(sentences)[self.text_encoders[0]]
        assert isinstance(vectors, np.ndarray)  # The configuration allows only text encoders with dense vectors here.
        return _unit(self.text_encoders[0], vectors)

    def settings(self) -> Settings:
        return {"encoder": self.encoders[0], "text_encoder": self.text_encoders[0]}

    def tensors(self) -> dict[str, np.ndarray]:
        return {}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "ZeroShot":
        return cls(read_setting(settings, "encoder", str), read_setting(settings, "text_encoder", str))


def _unit(name: str, vectors: np.ndarray) -> np.ndarray:
    """Return a copy of the `vectors` (n, dim) of the encoder `name` as float32 of unit length. Rows of zeros stay zero.
    Raises IntegrityError, which names the encoder and the row, if a vector is not finite."""
    require_finite(name, "vectors", vectors)
    return scale_to_unit_length(vectors.astype(np.float64)).astype(np.float32)


Rules = Sequence[ScoreRule | None]
"""The score rules of the members of an ensemble, in order. The rule is None for a member with one vector per image and
per sentence, which scores by inner products."""


@dataclass(frozen=True)
class EnsembleMember:
    """A member of an ensemble: the `model`, the name under which the class of the model is registered (`registered`),
    and the `weight` of the model in the score. The weights of all members add up to 1."""

    registered: str
    model: JointModel
    weight: float


class Ensemble:
    """A model whose score is the weighted sum of its members' scores.

    An ensemble reads sentences as a mapping from each form in `views` to the sentences in this form. If a member is
    multi-vector, the ensemble is multi-vector too.
    """

    sentence_view: str = "each"
    metric: str = "inner_product"

    def __init__(self, members: Sequence[EnsembleMember]) -> None:
        self.members = tuple(members)

    def to(self, device: "torch.device") -> Self:
        """Make all members compute on `device` from now on, as far as they can, and return this ensemble, not a
        copy."""
        for member in self.members:
            member.model.to(device)
        return self

    @property
    def encoders(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for member in self.members for name in member.model.encoders))

    @property
    def text_encoders(self) -> tuple[str, ...]:
        """The text encoders of all members, each once, in the order of the members."""
        return tuple(dict.fromkeys(chain.from_iterable(member.model.text_encoders for member in self.members)))

    @property
    def weights(self) -> list[float]:
        return [member.weight for member in self.members]

    @property
    def rules(self) -> Rules:
        """The score rule of each member, or None for a member with one vector per image and per sentence."""
        return [member.model.rule if is_multi_vector(member.model) else None for member in self.members]

    @property
    def rule(self) -> ScoreRule | None:
        """The score rule of the ensemble, or None if no member is multi-vector."""
        return joint_rule(self.rules)

    @property
    def multi_vector(self) -> bool:
        return any(self.rules)

    @property
    def region_encoders(self) -> tuple[str, ...]:
        """The encoders whose region features the multi-vector members read. All multi-vector members read the same
        encoders. The tuple is empty if no member is multi-vector."""
        return next((member.model.region_encoders for member in self.members if member.model.multi_vector), ())

    @property
    def views(self) -> tuple[str, ...]:
        """The forms of sentences that the members read, each once. The form of a member is its `sentence_view`."""
        return tuple(dict.fromkeys(member.model.sentence_view for member in self.members))

    def embed_images(self, features: Features, regions: RegionSource | None = None) -> Items:
        """Embed n images by all members, and join the results.

        `features` maps each encoder to an array (n, dim of the encoder). Multi-vector members also read the `regions`
        of the images. If no member is multi-vector, the result is an array (n, sum of the members' dimensions), in
        which the unit vectors of each member are multiplied by the square root of the member's weight. Otherwise the
        result is MultiVectors (see `join_images`).
        """
        parts = [embed_images(member.model, features, regions) for member in self.members]
        return join_images(parts, self.weights, self.rules)

    def embed_sentences(self, sentences: "Sentences") -> Items:
        """Embed n sentences by all members, and join the results. `sentences` maps each form in `views` to the same n
        sentences in this form.

        If no member is multi-vector, the result is an array (n, sum of the members' dimensions), in which the unit
        vectors of each member are multiplied by the square root of the member's weight. Otherwise the result is
        MultiVectors (see `join_sentences`).
        """
        assert isinstance(sentences, Mapping)
        parts = []
        for member in self.members:
            form: Any = sentences[member.model.sentence_view]
            parts.append(member.model.embed_sentences(form))
        return join_sentences(parts, self.weights, self.rules)

    def settings(self) -> dict[str, Any]:
        members = [
            {"registered": member.registered, "weight": member.weight, "settings": member.model.settings()}
            for member in self.members
        ]
        return {"members": members}

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the tensors of all members. The names of the tensors of member k begin with `k/`, counted from 0."""
        return {
            f"{number}/{name}": tensor
            for number, member in enumerate(self.members)
            for name, tensor in member.model.tensors().items()
        }

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "Ensemble":
        members = []
        for number, value in enumerate(read_list(settings, "members")):
            prefix = f"{number}/"
            own = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
            model = restore(value["registered"], value["settings"], own)
            members.append(EnsembleMember(value["registered"], model, read_number(value, "weight")))
        return cls(members)


def joint_rule(rules: Rules) -> ScoreRule | None:
    """Return the score rule for the joined vectors of members with these `rules`, or None if all rules are None.

    Some rules may be None. The other rules must agree: either each `sum` is `words` or `mean-words`, or each `sum` is
    `positive` or `mean-positive`. The checks of the configuration ensure this. The `sum` of the result is `words` or
    `positive`, without `mean-`, because `join_sentences` divides the word vectors of a member with a mean by the number
    of words. The global weight of the result is 1, because the joined globals already contain the weights.
    """
    sums = [rule.sum for rule in rules if rule]
    return ScoreRule(sums[0].removeprefix("mean-"), 1.0) if sums else None


def join_vectors(vectors: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Multiply the unit vectors (n, c_k) of each member by the square root of the member's weight, and put the results
    side by side.

    `vectors` and `weights` have an entry for each member. Returns (n, sum of all c_k) float32. The inner products of
    joined vectors of images and sentences are the weighted sums of the members' scores. If the weights add up to 1, the
    joined vectors have unit length.
    """
    return np.hstack([np.sqrt(np.float32(weight)) * part for weight, part in zip(weights, vectors, strict=True)])


def join_images(parts: Sequence[Items], weights: Sequence[float], rules: Rules) -> Items:
    """Join the embeddings of n images as the docstring of the module describes. The regions of an image are the same
    for all multi-vector members.

    `parts`, `weights` and `rules` have an entry for each member: its embeddings, its weight and its score rule. Returns
    MultiVectors if a member has a rule, and otherwise the result of `join_vectors`.
    """
    sets = [several_vectors_each(part) for part, rule in zip(parts, rules, strict=True) if rule]
    if not sets:
        return join_vectors([one_vector_each(part) for part in parts], weights)
    vectors = np.hstack([part.array for part in sets])
    return replace(sets[0], vectors=vectors, globals=_join_globals(parts, weights, rules))


def join_sentences(parts: Sequence[Items], weights: Sequence[float], rules: Rules) -> Items:
    """Join the embeddings of n sentences as the docstring of the module describes.

    `parts`, `weights` and `rules` have an entry for each member: its embeddings, its weight and its score rule. The
    word vectors of a member are multiplied by the member's weight. If the rule of the member takes a mean, the word
    vectors are also divided by the number of words of their sentence. Returns MultiVectors if a member has a rule, and
    otherwise the result of `join_vectors`.
    """
    sets = [
        (several_vectors_each(part), weight, rule)
        for part, weight, rule in zip(parts, weights, rules, strict=True)
        if rule
    ]
    if not sets:
        return join_vectors([one_vector_each(part) for part in parts], weights)
    offsets = offsets_of(np.sum([part.lengths for part, _, _ in sets], axis=0))
    vectors = np.zeros((offsets[-1], sum(part.array.shape[1] for part, _, _ in sets)), np.float32)
    column = 0
    starts = offsets[:-1]
    for part, weight, rule in sets:
        scale = weight / part.lengths[part.owners, None] if rule.sum.startswith("mean") else weight
        width = part.array.shape[1]
        vectors[runs(starts, part.lengths), column : column + width] = part.array * scale
        column += width
        starts = starts + part.lengths
    return MultiVectors(vectors, offsets, _join_globals(parts, weights, rules))


def _join_globals(parts: Sequence[Items], weights: Sequence[float], rules: Rules) -> np.ndarray:
    """Compute the globals of n images, or of n sentences, of a multi-vector ensemble. Return (n, g).

    The globals are, side by side, the vectors of the members with one vector per image and per sentence, and the
    globals of the multi-vector members. Vectors are multiplied by the root of the member's weight. Globals are
    multiplied by the root of the product of the member's weight and the global weight of the member's rule. The globals
    of a member whose rule has the global weight 0 are left out. If nothing is left, the result is one column of zeros.
    """
    vectors: list[np.ndarray] = []
    scales: list[float] = []
    for part, weight, rule in zip(parts, weights, rules, strict=True):
        if rule is None:
            vectors.append(one_vector_each(part))
            scales.append(weight)
        elif rule.global_weight:
            globals_of_items = several_vectors_each(part).globals
            assert globals_of_items is not None, "a rule with a global weight has globals"
            vectors.append(to_numpy(globals_of_items))
            scales.append(weight * rule.global_weight)
    return join_vectors(vectors, scales) if vectors else np.zeros((len(parts[0]), 1), np.float32)


Judge = Callable[[tuple[float, ...]], float]
"""A function from the weights of all members of an ensemble to the merit of these weights. A higher merit is better."""


@dataclass(frozen=True)
class MemberWeights:
    """The chosen weights `values` of an ensemble, one per member, which add up to 1.

    `judged` is the merit of the chosen weights on dev, such as the recall sum of the ensemble, and `trials` is the
    number of different combinations of weights that were tried.
    """

    values: tuple[float, ...]
    judged: float
    trials: int


def choose_weights(judge: Judge, members: int, grid: Sequence[float]) -> MemberWeights:
    """Choose the weights of an ensemble of `members` members by coordinate searches over `grid`.

    `judge` returns the merit of weights, which add up to 1 in each of its calls. One search starts from equal weights,
    and further searches start from each member alone. A search changes the weight of one member after another to each
    value of the grid, until no change increases the merit. Among equally good weights, the weights that were found
    first are returned. Only the ratios of weights matter, and `judge` is called once for each combination of ratios.
    `grid` has at least one positive value and no negative value.
    """
    judged: dict[tuple[float, ...], float] = {}

    def worth(trial: tuple[float, ...]) -> float:
        key = _scaled(trial)
        if key not in judged:
            judged[key] = judge(key)
        return judged[key]

    alone = [tuple(float(member == other) for other in range(members)) for member in range(members)]
    best = max((_climb(worth, start, grid) for start in [(1.0,) * members, *alone]), key=worth)
    return MemberWeights(_scaled(best), worth(best), len(judged))


def _climb(worth: Judge, start: tuple[float, ...], grid: Sequence[float]) -> tuple[float, ...]:
    """Begin with the weights `start`, and change one weight at a time to a value of `grid` that increases the merit,
    until no such change exists. `worth` returns the merit of weights. Return the last weights, which need not add up to
    1."""
    best = start
    improved = True
    while improved:
        improved = False
        for member in range(len(best)):
            for value in grid:
                trial = (*best[:member], float(value), *best[member + 1 :])
                if any(trial) and worth(trial) > worth(best):
                    best = trial
                    improved = True
    return best


def _scaled(weights: Sequence[float]) -> tuple[float, ...]:
    """Return the weights divided by their sum, rounded so that equal ratios give equal weights. The sum is not 0."""
    return tuple(round(weight / sum(weights), 12) for weight in weights)


def combine_scores(
    scores: Sequence[np.ndarray], owners: np.ndarray, grid: Sequence[float], after_trial: Callable[[], object]
) -> MemberWeights:
    """Search with `choose_weights` for the weights for which the weighted sum of the members' scores has the greatest
    recall sum.

    `scores` has an array (n, m) for each member: the member's scores of n images with m sentences, usually of dev.
    Sentence j belongs to image `owners[j]`. The weights in `grid` are for scores with the standard deviation 1, so that
    the grid suits members of any scale. The returned weights are for the `scores` themselves. `after_trial` is called
    for each trial.
    """
    deviations = [float(part.std(dtype=np.float64)) or 1.0 for part in scores]
    scaled = [part / np.float32(deviation) for part, deviation in zip(scores, deviations, strict=True)]
    chosen = choose_weights(judge_scores(scaled, owners, after_trial), len(scores), grid)
    values = [value / deviation for value, deviation in zip(chosen.values, deviations, strict=True)]
    return replace(chosen, values=_scaled(values))


def judge_scores(
    scores: Sequence[np.ndarray], owners: np.ndarray, after_trial: Callable[[], object] = lambda: None
) -> Judge:
    """Return a function from the weights of the members to the recall sum of the weighted sum of their `scores`.

    `scores` has an array (n, m) for each member: the member's scores of n images with m sentences. Sentence j belongs
    to image `owners[j]`. The recall sum is the sum of recall@1, @5 and @10 of both directions in percent. The returned
    function calls `after_trial` once in each of its calls.
    """

    def judge(weights: tuple[float, ...]) -> float:
        total = np.zeros(scores[0].shape, np.float32)
        for weight, part in zip(weights, scores, strict=True):
            if weight:
                total += np.float32(weight) * part
        after_trial()
        return recall_sum(rank_scores(total, owners))

    return judge

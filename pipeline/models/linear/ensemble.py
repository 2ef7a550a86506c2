"""Models that learn nothing: `zero-shot`, the space that an encoder of images and one of text share already, and
several models as one, whose score is the weighted sum of its members' scores.

    S = sum over members of weight_k S_k

Members with one vector an item are put side by side. If some members are multi-vector, so is the joined model: its
globals are the vectors of the other members and the multi-vector members' globals, side by side. Region vectors, which
are of the same regions, are side by side too; a word has one row for each multi-vector member, zero outside that
member's columns, so that each member chooses its own best region. Word rows carry the weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pipeline.compute.multivectors import Items, MultiVectors, ScoreRule
from pipeline.compute.precision import require_finite, scale_to_unit_length
from pipeline.compute.ragged import offsets_of, runs
from pipeline.config.stored import restore

if TYPE_CHECKING:
    import torch


class ZeroShot:
    """Unit vectors of one encoder's features and of one text encoder's vectors, whose cosine is the score. It learns
    nothing."""

    sentence_view: ClassVar[str] = "vectors"
    metric: ClassVar[str] = "inner_product"
    multi_vector: ClassVar[bool] = False

    def __init__(self, encoder: str, text_encoder: str) -> None:
        self.encoders, self.text_encoders = (encoder,), (text_encoder,)

    def to(self, device: Any) -> "ZeroShot":
        """This model; there is nothing to compute on a device."""
        return self

    def embed_images(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, dim) float32 from `features`, encoder -> (n, dim)."""
        return _unit(self.encoders[0], features[self.encoders[0]][:])

    def embed_sentences(self, sentences: Mapping[str, Any]) -> np.ndarray:
        """(n, dim) float32 from `sentences`, text encoder -> (n, dim)."""
        return _unit(self.text_encoders[0], sentences[self.text_encoders[0]])

    def settings(self) -> dict[str, Any]:
        return {"encoder": self.encoders[0], "text_encoder": self.text_encoders[0]}

    def tensors(self) -> dict[str, np.ndarray]:
        return {}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "ZeroShot":
        return cls(**settings)


def _unit(name: str, vectors: np.ndarray) -> np.ndarray:
    """Return (n, dim) float32 of unit length. Raises IntegrityError if a vector is not finite."""
    require_finite(name, "vectors", vectors)
    return scale_to_unit_length(vectors.astype(np.float64)).astype(np.float32)


Rules = Sequence[ScoreRule | None]
"""How each member scores: by a rule, or, with one vector an item (None), by inner products."""


@dataclass(frozen=True)
class EnsembleMember:
    """A model of an ensemble with its registered name and its weight; weights add up to 1."""

    registered: str
    model: Any
    weight: float


class Ensemble:
    """Its vectors are the `members`' side by side. Sentences are a mapping of `sentence_view` -> sentences, with every
    form that a member takes."""

    sentence_view: ClassVar[str] = "each"
    metric: ClassVar[str] = "inner_product"

    def __init__(self, members: Sequence[EnsembleMember]) -> None:
        self.members = tuple(members)

    def to(self, device: "torch.device") -> "Ensemble":
        """This ensemble, whose members compute on `device` from now on if they can."""
        for member in self.members:
            member.model.to(device)
        return self

    @property
    def encoders(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for member in self.members for name in member.model.encoders))

    @property
    def text_encoders(self) -> tuple[str, ...]:
        """Those whose vectors of sentences the members take."""
        names = (getattr(member.model, "text_encoders", ()) for member in self.members)
        return tuple(dict.fromkeys(chain.from_iterable(names)))

    @property
    def weights(self) -> list[float]:
        return [member.weight for member in self.members]

    @property
    def rules(self) -> Rules:
        """Those of the members, None for one with one vector an item."""
        return [member.model.rule if member.model.multi_vector else None for member in self.members]

    @property
    def rule(self) -> ScoreRule | None:
        """That of the ensemble, None if no member is multi-vector."""
        return joint_rule(self.rules)

    @property
    def multi_vector(self) -> bool:
        return any(self.rules)

    @property
    def region_encoders(self) -> tuple[str, ...]:
        """Those of the run, which are the same for all multi-vector members."""
        return next(member.model.region_encoders for member in self.members if member.model.multi_vector)

    @property
    def views(self) -> tuple[str, ...]:
        """The forms of sentences that the members take."""
        return tuple(dict.fromkeys(member.model.sentence_view for member in self.members))

    def embed_images(self, features: Mapping[str, np.ndarray], *regions: Any) -> Items:
        """From `features`, encoder -> (n, its dim), and for a multi-vector ensemble from the images' regions."""
        models = [member.model for member in self.members]
        parts = [model.embed_images(features, *(regions if model.multi_vector else ())) for model in models]
        return join_images(parts, self.weights, self.rules)

    def embed_sentences(self, sentences: Mapping[str, Any]) -> Items:
        """From the same n sentences in each of `views`."""
        models = [member.model for member in self.members]
        parts = [model.embed_sentences(sentences[model.sentence_view]) for model in models]
        return join_sentences(parts, self.weights, self.rules)

    def settings(self) -> dict[str, Any]:
        members = [
            {"registered": member.registered, "weight": member.weight, "settings": member.model.settings()}
            for member in self.members
        ]
        return {"members": members}

    def tensors(self) -> dict[str, np.ndarray]:
        """Those of member k as `k/...`."""
        return {
            f"{number}/{name}": tensor
            for number, member in enumerate(self.members)
            for name, tensor in member.model.tensors().items()
        }

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "Ensemble":
        """The ensemble that `settings` and `tensors` came from."""
        members = []
        for number, value in enumerate(settings["members"]):
            prefix = f"{number}/"
            of_member = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
            model = restore(value["registered"], value["settings"], of_member)
            members.append(EnsembleMember(value["registered"], model, value["weight"]))
        return cls(members)


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

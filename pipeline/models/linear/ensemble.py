"""Models that learn nothing: `zero-shot`, the space that an encoder of images and one of text share already, and
several models as one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pipeline.config.stored import restore
from pipeline.metrics.combination import Rules, join_images, join_sentences, joint_rule
from pipeline.models.linear.projection import unit_rows
from pipeline.multivectors import Items, ScoreRule
from pipeline.precision import require_finite

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
    """(n, dim) float32 of unit length, whatever the size of the numbers. IntegrityError where one is not finite."""
    require_finite(name, "vectors", vectors)
    return unit_rows(vectors.astype(np.float64)).astype(np.float32)


@dataclass(frozen=True)
class EnsembleMember:
    """A model of an ensemble with its registered name and its weight; weights add up to 1."""

    registered: str
    model: Any
    weight: float


class Ensemble:
    """s(x, y) = sum over members k of weight_k s_k(x, y).

    Its vectors are the members' side by side (see pipeline.metrics.combination); it is multi-vector if a member is.
    Sentences are a mapping of `sentence_view` -> sentences, with every form that a member takes.
    """

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

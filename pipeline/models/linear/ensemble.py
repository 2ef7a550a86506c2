"""Several models as one: the row kind `ensemble`, whose score is the weighted sum of its members' scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pipeline.metrics.combination import join_vectors
from pipeline.specs.stored import restore

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Member:
    """A model of an ensemble: its registered name, itself, and its weight; weights add up to 1."""

    registered: str
    model: Any
    weight: float


class Ensemble:
    """s(x, y) = sum over members k of weight_k s_k(x, y), the scores of models of unit vectors.

    Its vectors are the members' side by side, each times the square root of its weight. Sentences come in every form
    that a member takes, as a mapping of `sentence_view` -> sentences.
    """

    sentence_view: ClassVar[str] = "each"
    kind: ClassVar[str] = "global"
    metric: ClassVar[str] = "inner_product"

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = tuple(members)

    def to(self, device: "torch.device") -> "Ensemble":
        """This ensemble, whose members compute on `device` from now on, those that can."""
        for member in self.members:
            member.model.to(device)
        return self

    @property
    def encoders(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for member in self.members for name in member.model.encoders))

    @property
    def weights(self) -> list[float]:
        return [member.weight for member in self.members]

    @property
    def views(self) -> tuple[str, ...]:
        """The forms of sentences that its members take."""
        return tuple(dict.fromkeys(member.model.sentence_view for member in self.members))

    def embed_images(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, c) float32 from `features`, encoder -> (n, its dim)."""
        return self._join([member.model.embed_images(features) for member in self.members])

    def embed_sentences(self, sentences: Mapping[str, Any]) -> np.ndarray:
        """(n, c) float32 from the same n sentences in each of `views`."""
        members = self.members
        return self._join([member.model.embed_sentences(sentences[member.model.sentence_view]) for member in members])

    def settings(self) -> dict[str, Any]:
        members = [
            {"registered": member.registered, "weight": member.weight, "settings": member.model.settings()}
            for member in self.members
        ]
        return {"members": members}

    def tensors(self) -> dict[str, np.ndarray]:
        """Those of member k under the names `k/...`."""
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
            own = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
            model = restore(value["registered"], value["settings"], own)
            members.append(Member(value["registered"], model, value["weight"]))
        return cls(members)

    def _join(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        return join_vectors(vectors, self.weights)

"""What every generator answers with, and what it may ask while it describes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from pipeline.generate.beam import BeamSearch
from pipeline.generate.corpus import Corpus, Likeness
from pipeline.generate.space import JointSpace
from pipeline.generate.trigram import Trigram
from pipeline.settings.generators import CandidatesSettings


class Description(NamedTuple):
    """A sentence's words, and its score: the greater, the better among one generator's."""

    words: tuple[str, ...]
    score: float


@dataclass(frozen=True)
class Sources:
    """What a generator may draw on: the training sentences, how to search, and for those that take them the joint
    space and a trigram. Sentences are drawn at `temperature` where it is not None, else the best are sought."""

    corpus: Corpus
    search: BeamSearch
    temperature: float | None
    candidates: CandidatesSettings
    seed: int
    space: JointSpace | None
    trigram: Trigram | None

    def generator(self, device: torch.device) -> torch.Generator:
        """Random numbers of `device`, from their beginning."""
        return torch.Generator(device).manual_seed(self.seed)

    @cached_property
    def sentence_vectors(self) -> np.ndarray:
        """(m, c) the training sentences in the joint space."""
        return self.space.sentences(self.corpus.texts)


class Generator(Protocol):
    """A registered generator."""

    @property
    def encoders(self) -> tuple[str, ...]:
        """The encoders whose features it takes."""
        ...

    @property
    def in_space(self) -> bool:
        """Whether it needs the joint space."""
        ...

    def to(self, device: torch.device) -> "Generator":
        """Itself, its network computing on `device` from now on."""
        ...

    def describe(self, features: Mapping[str, np.ndarray], sources: Sources, count: int) -> list[list[Description]]:
        """At most `count` descriptions, best first, of every image given as encoder -> (n, its dim)."""
        ...

    def settings(self) -> dict[str, Any]: ...

    def tensors(self) -> dict[str, np.ndarray]: ...


class Told(NamedTuple):
    """A generated sentence, and the training sentence `nearest` to it by the `cosine` of weighted bags of words, which
    is the sentence itself, word by word, where it is `verbatim`."""

    text: str
    score: float
    verbatim: bool
    nearest: str
    cosine: float

    def to_dict(self) -> dict[str, Any]:
        """As it stands in descriptions.json."""
        nearest = {"text": self.nearest, "cosine": self.cosine}
        return {"text": self.text, "score": self.score, "verbatim": self.verbatim, "nearest": nearest}


def describe_images(
    generator: Generator, features: Mapping[str, np.ndarray], sources: Sources, count: int
) -> list[list[Told]]:
    """At most `count` sentences, best first, of every image given as encoder -> (n, its dim)."""
    described, corpus = generator.describe(features, sources, count), sources.corpus
    likenesses = iter(corpus.likeness([" ".join(one.words) for group in described for one in group]))
    return [[_tell(one, next(likenesses), corpus) for one in group] for group in described]


def _tell(one: Description, likeness: Likeness, corpus: Corpus) -> Told:
    nearest = corpus.texts[likeness.row]
    return Told(" ".join(one.words), one.score, likeness.verbatim, nearest, likeness.cosine)

"""Generators' interface: their inputs and their descriptions."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from pipeline.generate.beam import BeamSearch
from pipeline.generate.corpus import Corpus
from pipeline.generate.space import JointSpace
from pipeline.generate.trigram import Trigram


class Description(NamedTuple):
    """A sentence's words, and its score; higher is better within one generator."""

    words: tuple[str, ...]
    score: float


@dataclass(frozen=True)
class Candidates:
    """How lbl, mnlm and sc-nlm make and rank candidates (Kiros et al. 2014, supplement 5.2).

    `count` of them for every image, each from one of the conditioning vectors: the image's embedding, and the mean of
    its `neighbours` nearest words and as many sentences. Words are drawn at `temperature` where no parts of speech
    guide them. Structures are those of training sentences of `shortest` to `longest` words. A candidate's score is its
    cosine with the image, times `repeat_penalty` for every repetition of a word that is no stop word (see
    `lm.penalise` for a negative one), plus `language_weight` times the trigram's log probability a word.
    """

    count: int
    neighbours: int = 5
    temperature: float = 0.7
    shortest: int = 4
    longest: int = 12
    repeat_penalty: float = 0.8
    language_weight: float = 0.2


@dataclass(frozen=True)
class Sources:
    """The inputs of generators: the training sentences, search settings, and for some the joint space and a trigram.

    With a `temperature`, sentences are sampled; without, the most probable are searched for.
    """

    corpus: Corpus
    search: BeamSearch
    temperature: float | None
    candidates: Candidates
    seed: int
    space: JointSpace | None
    trigram: Trigram | None

    def generator(self, device: torch.device) -> torch.Generator:
        """A freshly seeded random number generator on `device`."""
        return torch.Generator(device).manual_seed(self.seed)

    @cached_property
    def sentence_vectors(self) -> np.ndarray:
        """(m, c) the training sentences in the joint space."""
        return self.space.sentences(self.corpus.texts)


class Generator(Protocol):
    """A registered generator: takes the features of `encoders`, and the joint space if it is `in_space`."""

    encoders: tuple[str, ...]
    in_space: bool

    def to(self, device: torch.device) -> "Generator":
        """Moves its network to `device`; returns itself."""
        ...

    def describe(self, features: Mapping[str, np.ndarray], sources: Sources, count: int) -> list[list[Description]]:
        """At most `count` descriptions, best first, of every image given as encoder -> (n, its dim)."""
        ...

    def settings(self) -> dict[str, Any]:
        """As JSON; `from_parts(settings, tensors)` restores the generator."""
        ...

    def tensors(self) -> dict[str, np.ndarray]: ...


class Told(NamedTuple):
    """A generated sentence and the training sentence `nearest` to it, by the `cosine` of weighted bags of words;
    `verbatim`: the two are the same word by word."""

    text: str
    score: float
    verbatim: bool
    nearest: str
    cosine: float

    def to_dict(self) -> dict[str, Any]:
        """The entry in descriptions.json."""
        nearest = {"text": self.nearest, "cosine": self.cosine}
        return {"text": self.text, "score": self.score, "verbatim": self.verbatim, "nearest": nearest}


def describe_images(
    generator: Generator, features: Mapping[str, np.ndarray], sources: Sources, count: int
) -> list[list[Told]]:
    """At most `count` sentences, best first, of every image given as encoder -> (n, its dim)."""
    described, corpus = generator.describe(features, sources, count), sources.corpus
    likenesses = iter(corpus.likeness([" ".join(one.words) for group in described for one in group]))
    return [
        [
            Told(" ".join(one.words), one.score, near.verbatim, corpus.texts[near.row], near.cosine)
            for one, near in zip(group, likenesses, strict=False)
        ]
        for group in described
    ]

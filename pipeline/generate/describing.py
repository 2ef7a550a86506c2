"""Describing images: what a generator is and uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from pipeline.generate.beam import BeamSearch
from pipeline.generate.corpus import Corpus, Trigram
from pipeline.generate.material import HeldOut, JointSpace, required
from pipeline.text.tokens import join_words


class Description(NamedTuple):
    """A sentence's words, and its score; higher is better within one generator."""

    words: tuple[str, ...]
    score: float


@dataclass(frozen=True)
class Sources:
    """The inputs of generators: the training sentences, search settings, the number of `candidates` that the
    log-bilinear models make for an image, and for some the joint space and a trigram.

    With a `temperature`, sentences are sampled; without, the most probable are searched for.
    """

    corpus: Corpus
    search: BeamSearch
    temperature: float | None
    candidates: int
    seed: int
    space: JointSpace | None
    trigram: Trigram | None

    def generator(self, device: torch.device) -> torch.Generator:
        """A freshly seeded random number generator on `device`."""
        return torch.Generator(device).manual_seed(self.seed)

    @cached_property
    def sentence_vectors(self) -> np.ndarray:
        """The training sentences in the joint space, (m, c)."""
        return required(self.space).sentences(self.corpus.texts)


class Generator(Protocol):
    """A registered generator, which reads the features of `encoders`, and the joint space if its settings are
    `in_space`."""

    @property
    def encoders(self) -> tuple[str, ...]: ...

    def to(self, device: torch.device) -> "Generator":
        """Move its network to `device`, and return this generator."""
        ...

    def describe(self, features: Mapping[str, np.ndarray], sources: Sources, count: int) -> list[list[Description]]:
        """At most `count` descriptions, best first, of every image given as encoder -> (n, its dim)."""
        ...

    def settings(self) -> dict[str, Any]:
        """As JSON; `from_parts(settings, tensors)` restores the generator."""
        ...

    def tensors(self) -> dict[str, np.ndarray]: ...


class RankingGenerator(Generator, Protocol):
    """A generator that also says how probable a given sentence is."""

    def log_probabilities(self, features: Mapping[str, np.ndarray], given: HeldOut) -> np.ndarray:
        """Return the log probability (n, m) of each of the m sentences `given` each of n images."""
        ...


def describe_images(
    generator: Generator, features: Mapping[str, np.ndarray], sources: Sources, count: int
) -> list[list[dict[str, Any]]]:
    """At most `count` sentences, best first, of every image given as encoder -> (n, its dim), as descriptions.json has
    them: `text` and `score`, the training sentence `nearest` to it by the cosine of weighted bags of words, and whether
    the two are the same word by word, `verbatim`."""
    corpus = sources.corpus
    described = generator.describe(features, sources, count)
    likenesses = iter(corpus.likeness([" ".join(sentence.words) for image in described for sentence in image]))

    def entry(sentence: Description) -> dict[str, Any]:
        near = next(likenesses)
        nearest = {"text": corpus.texts[near.row], "cosine": near.cosine}
        text = join_words(sentence.words)
        return {"text": text, "score": sentence.score, "verbatim": near.verbatim, "nearest": nearest}

    return [[entry(sentence) for sentence in image] for image in described]


class Learned(NamedTuple):
    """A trained generator and the log of its training, as JSON values."""

    generator: Generator
    log: Mapping[str, Any]  # Any: JSON values

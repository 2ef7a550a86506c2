"""The training inputs of generators: pairs of images and sentences, texts, the joint space, and extra text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from pipeline.errors import UsageError
from pipeline.generate.space import JointSpace
from pipeline.generate.tagging import Tagged
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.task import TrainingPairs
from pipeline.models.neural.training import Checkpoint, Training
from pipeline.text.vocabulary import Vocabulary


class Ranker(NamedTuple):
    """The alignment `model` of the registered `name`, and the sums of the word vectors of all training snippets,
    `vectors` (k, c), by their numbers (the names of the training pairs)."""

    name: str
    model: Any
    vectors: np.ndarray


@dataclass(frozen=True)
class Material:
    """`train` and `dev`: images with sentences over `vocabulary`; `texts` has the sentences of both by name.

    `extra` are sentences without images, `treebank` the tagged sentences that a tagger learns from. `settings` is the
    generator's own section, `precision` the dtype of heavy products. Training resumes from `checkpoint`, on `device`,
    and calls `after_step` after every batch. `ranker` is for a generator that ranks snippets.
    """

    view: ImageView
    train: TrainingPairs
    dev: TrainingPairs
    texts: Mapping[str, Sequence[str]]
    vocabulary: Vocabulary
    space: JointSpace | None
    extra: Sequence[str]
    treebank: Sequence[Sequence[Tagged]] | None
    settings: Any
    seed: int
    precision: torch.dtype
    checkpoint: Checkpoint | None
    after_step: Callable[[Training], None]
    device: torch.device = torch.device("cpu")
    ranker: Ranker | None = None


def require_space(space: JointSpace | None) -> JointSpace:
    """`space`; raises UsageError if it is None."""
    if space is None:
        raise UsageError("this generator needs a joint space; set describe.space")
    return space


class HeldOut(NamedTuple):
    """Sentences to measure perplexity on: the `pairs` of a split and their `texts`; the rest as in Material."""

    pairs: TrainingPairs
    texts: Sequence[str]
    vocabulary: Vocabulary
    space: JointSpace | None
    treebank: Sequence[Sequence[Tagged]] | None
    seed: int


class Learned(NamedTuple):
    """A generator and the log of its training, as JSON values."""

    generator: Any
    log: Mapping[str, Any]

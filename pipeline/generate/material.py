"""What generators learn from: pairs of images and sentences, texts, the joint space, and further text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from pipeline.errors import UsageError
from pipeline.generate.space import JointSpace
from pipeline.generate.tagging import Tagged
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.task import TrainingPairs
from pipeline.models.neural.training import Checkpoint, Training
from pipeline.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Material:
    """`train` and `dev`: images with sentences as words over `vocabulary`, whose `texts` have these names too.

    `space` is the joint space where one is given; `extra` are sentences without images; `treebank` the tagged sentences
    that a tagger learns from. `settings` are the generator's own section, `precision` the dtype of heavy products.
    Training goes on from `checkpoint`, on `device`, and calls `after_step` after every batch.
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


def require_space(space: JointSpace | None) -> JointSpace:
    """`space`; raises UsageError where there is none."""
    if space is None:
        raise UsageError("this generator stands on a joint space; give it one")
    return space


class HeldOut(NamedTuple):
    """Sentences that perplexity is measured on: `pairs` of a split and their `texts`, and the rest as in Material."""

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

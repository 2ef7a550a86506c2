"""Sections about generators of descriptions."""

from typing import ClassVar, Literal

from pipeline.settings.section import (
    AboveZero,
    BelowOne,
    Count,
    Described,
    NonNegative,
    Positive,
    PositiveShare,
    Section,
    Share,
)


class Nearest(Section):
    by: Literal["features", "joint-image", "joint-sentence"]

    @property
    def in_space(self) -> bool:
        """Whether it stands on the joint space of a model."""
        return self.by != "features"


class Optimisation(Section):
    """How long and how fast, as in pipeline.models.neural.training.Schedule, but `clip` is the greatest absolute value
    of every element of the gradient (seed 000, supplement 6.5)."""

    in_space: ClassVar[bool] = False
    optimiser: Literal["rmsprop", "adam", "sgd"]
    learning_rate: AboveZero
    decay: PositiveShare
    weight_decay: NonNegative
    averaging: BelowOne
    clip: AboveZero
    dropout: BelowOne
    batch_size: Positive
    epochs: Positive
    patience: Positive
    checkpoint_seconds: NonNegative
    precision: Literal["auto", "float32", "bfloat16"]


class Recurrent(Optimisation):
    """`dimensions` H, `word_dim` of the word vectors, `dropout` of image, words and H."""

    cell: Literal["rnn", "gru", "lstm"]
    dimensions: Positive
    word_dim: Positive


class RegionRecurrent(Recurrent):
    snippets: str | None


class LogBilinear(Optimisation):
    """See pipeline.generate.logbilinear.Sizes."""

    in_space: ClassVar[bool] = True
    context: Positive
    dimensions: Positive
    factors: Positive
    ahead: Count


class ExtraText(Section):
    file: str | None
    column: Count
    treebank: str | None


class Candidates(Section):
    count: Positive
    neighbours: Positive
    temperature: AboveZero
    shortest: Positive
    longest: Positive
    repeat_penalty: Share
    language_weight: NonNegative


class Describe(Section):
    splits: tuple[Described, ...]
    boxes: bool
    space: str
    top: Positive
    beam: Positive
    length_power: NonNegative
    longest: Positive
    temperature: AboveZero | None
    batch_size: Positive
    shown: Positive
    candidates: Candidates
    meteor: bool

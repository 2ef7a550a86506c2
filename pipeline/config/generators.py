"""Sections about generators of descriptions."""

from typing import Literal

from pipeline.config.section import (
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


class Optimisation(Section):
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
    cell: Literal["rnn", "gru", "lstm"]
    dimensions: Positive
    word_dim: Positive


class RegionRecurrent(Recurrent):
    snippets: str | None


class LogBilinear(Optimisation):
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

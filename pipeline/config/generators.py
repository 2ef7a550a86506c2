"""Sections about generators of descriptions."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.section import NonNegative, Positive, Section, Share, Split

Dropout = Annotated[float, Field(ge=0, lt=1)]
AboveZero = Annotated[float, Field(gt=0)]


class Nearest(Section):
    by: Literal["features", "joint-image", "joint-sentence"]


class Optimisation(Section):
    optimiser: Literal["rmsprop", "adam", "sgd"]
    learning_rate: AboveZero
    decay: Annotated[float, Field(gt=0, le=1)]
    weight_decay: NonNegative
    averaging: Annotated[float, Field(ge=0, lt=1)]
    clip: AboveZero
    dropout: Dropout
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
    ahead: Annotated[int, Field(ge=0)]


class ExtraText(Section):
    file: str | None
    column: Annotated[int, Field(ge=0)]
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
    splits: tuple[Split, ...]
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

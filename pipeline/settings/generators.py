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


class NearestSettings(Section):
    """`distance` compares features; in the joint space it is always the cosine."""

    by: Literal["features", "joint-image", "joint-sentence"]
    distance: Literal["cosine", "euclidean"]

    @property
    def in_space(self) -> bool:
        """Whether it uses the joint space of a model."""
        return self.by != "features"


class OptimisationSettings(Section):
    """How long and how fast, as in pipeline.models.neural.schedules.TrainingSchedule, but `clip` is the greatest
    absolute value of every element of the gradient (Karpathy and Fei-Fei 2015, supplement 6.5)."""

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


class RecurrentSettings(OptimisationSettings):
    """`dimensions` H, `word_dim` of the word vectors, `dropout` of image, words and H."""

    cell: Literal["rnn", "relu", "gru", "lstm"]
    dimensions: Positive
    word_dim: Positive


class RegionRecurrentSettings(RecurrentSettings):
    """`whole`: features of the whole image stand beside the region's (Karpathy and Fei-Fei 2015, supplement 6.4)."""

    snippets: str | None
    whole: bool


class RankedSnippetsSettings(Section):
    """`snippets`: the model of regions alone that aligned them, and ranks them."""

    in_space: ClassVar[bool] = False
    snippets: str | None


class LogBilinearSettings(OptimisationSettings):
    """See pipeline.generate.logbilinear.LogBilinearSizes."""

    in_space: ClassVar[bool] = True
    context: Positive
    dimensions: Positive
    factors: Positive
    ahead: Count
    gate_bias: bool


class ExtraTextSettings(Section):
    file: str | None
    column: Count
    treebank: str | None


class CandidatesSettings(Section):
    """How lbl, mnlm and sc-nlm make and rank candidates (Kiros et al. 2014, supplement 5.2).

    `count` of them for every image, each from one of the conditioning vectors: the image's embedding, and the mean of
    its `neighbours` nearest words and as many sentences. Words are drawn at `temperature` where no parts of speech
    guide them. Structures are those of training sentences of `shortest` to `longest` words. A candidate's score is its
    cosine with the image, times `repeat_penalty` for every repetition of a word that is no stop word (see
    `candidates.penalise` for a negative one), plus `language_weight` times the trigram's log probability a word.
    """

    count: Positive
    neighbours: Positive
    temperature: AboveZero
    shortest: Positive
    longest: Positive
    repeat_penalty: Share
    language_weight: NonNegative


class DescribeSettings(Section):
    splits: tuple[Described, ...]
    boxes: bool
    region_texts: str | None
    space: str
    top: Positive
    beam: Positive
    length_power: NonNegative
    longest: Positive
    temperature: AboveZero | None
    batch_size: Positive
    shown: Positive
    candidates: CandidatesSettings
    meteor: bool

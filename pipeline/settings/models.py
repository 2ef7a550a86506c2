"""Sections about models and how they are trained."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.settings.section import (
    AboveZero,
    BelowOne,
    Count,
    Described,
    Name,
    NonNegative,
    Number,
    Positive,
    PositiveShare,
    Protocol,
    Section,
)

Eigenvalues = Annotated[tuple[Literal["correlation", "gong"], ...], Field(min_length=1)]
Kernel = Literal["linear", "rbf", "laplacian", "cosine", "polynomial"]


class FitSettings(Section):
    """The values to try.

    By `search` grid every pair of ridges is tried; by `lines` all image ridges at one text ridge, then all text ridges
    at the best of these, and so on in turn until no ridge changes. All else is tried in every combination.
    """

    dimensions: Annotated[tuple[Positive, ...], Field(min_length=1)]
    image_ridge: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    text_ridge: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    eigenvalue_power: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    eigenvalues: Eigenvalues
    search: Literal["grid", "lines"]
    dev_images: Positive
    text_weights: dict[Name, Annotated[tuple[NonNegative, ...], Field(min_length=1)]]


class TransferSettings(Section):
    """How auxiliary pairs enter; sequences are axes of which every combination is tried on dev.

    `beta` scales the auxiliary rows in joint training, `second_beta` those of the second CCA of SAE (the paper has
    none: 0). `auxiliary_dimensions` is c1 and `auxiliary_power` the t of the auxiliary CCA,
    of `auxiliary_eigenvalues`. `weight` is the length of
    the stacked columns relative to that of the original ones. `rule` and `bandwidth` (in multiples of sigma),
    `features` (m) and `sample` (rows that sigma is measured on) make the random Fourier map; `neighbours` is k of
    text-feature and `neighbour_share` the total variance of its mean texts over that of the image view.
    """

    beta: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    auxiliary_dimensions: Annotated[tuple[Positive, ...], Field(min_length=1)]
    auxiliary_power: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    auxiliary_eigenvalues: Eigenvalues
    weight: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    second_beta: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    rule: Annotated[tuple[Literal["cosine-sine", "paper"], ...], Field(min_length=1)]
    bandwidth: Annotated[tuple[AboveZero, ...], Field(min_length=1)]
    features: Positive
    sample: Annotated[Positive, Field(ge=2)]
    neighbours: Positive
    neighbour_share: Annotated[tuple[NonNegative, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _frequencies_are_whole(self) -> "TransferSettings":
        if "cosine-sine" in self.rule and self.features % 2:
            raise ValueError("features: must be even for the rule cosine-sine, which uses every frequency twice")
        return self


class KernelsSettings(Section):
    """Kernels by scikit-learn's names, the factor of each one's default gamma, how many landmarks a view has, and what
    compares images with sentences."""

    image_kernel: Kernel
    text_kernel: Kernel
    image_gamma: AboveZero
    text_gamma: AboveZero
    landmarks: Positive
    score: Literal["cosine", "product", "distance"]


class WsabieSettings(Section):
    """The grids of the learning rate and of alpha, `max_norm`, how they are searched, and how training goes; see
    models.linear.wsabie."""

    learning_rate: Annotated[tuple[AboveZero, ...], Field(min_length=1)]
    max_norm: Annotated[tuple[AboveZero, ...], Field(min_length=1)]
    search: Literal["lines", "grid"]
    dimensions: Positive
    epochs: Positive
    batch: Positive
    max_samples: Positive
    interval: Positive
    patience: Positive


class WordVectorsSettings(Section):
    source: Literal["random", "corpus", "file"]
    file: str | None
    format: Literal["text", "binary"]
    dim: Positive
    window: Positive
    epochs: Positive
    predicts: Literal["context", "word"]
    train: bool

    @model_validator(mode="after")
    def _file_goes_with_source(self) -> "WordVectorsSettings":
        if (self.source == "file") != (self.file is not None):
            raise ValueError("word_vectors: give `file` exactly when `source` is file")
        return self


class TrainSettings(Section):
    """Every choice about one training; see models.neural's Objective and Schedule. `dimensions` is K, `encoder_dropout`
    the share of images whose features of an encoder are left out of a batch, every encoder's for itself, but never all
    of them."""

    dimensions: Positive
    loss: Literal["info-nce", "ranking", "squared"]
    score: Literal["cosine", "product"]
    negatives: Literal["all", "distinct", "hardest", "sampled"]
    reduction: Literal["mean", "sum"]
    contrastive: Positive
    resampled: Literal["batch", "epoch"]
    margin: NonNegative
    temperature: AboveZero
    optimiser: Literal["adam", "sgd", "momentum", "adagrad"]
    adagrad_reset: Positive
    learning_rate: AboveZero
    decay: PositiveShare
    weight_decay: NonNegative
    penalty: NonNegative
    averaging: BelowOne
    dropout: BelowOne
    encoder_dropout: BelowOne
    clip: AboveZero
    batch_size: Annotated[Positive, Field(ge=2)]
    epochs: Positive
    patience: Positive
    precision: Literal["auto", "float32", "bfloat16"]
    checkpoint_seconds: NonNegative

    @model_validator(mode="after")
    def _hardest_is_of_the_ranking_loss(self) -> "TrainSettings":
        if self.loss == "info-nce" and self.negatives == "hardest":
            raise ValueError("negatives: hardest goes with loss: ranking; choose all or sampled for info-nce")
        return self


class LongShortTermTrainSettings(TrainSettings):
    """`peepholes`: whether the gates see the cell."""

    peepholes: bool


class TreeTrainSettings(TrainSettings):
    """`activation`: f of the states."""

    activation: Literal["tanh", "relu", "sigmoid", "identity"]


class PlainTrainSettings(TreeTrainSettings):
    """`bias`: whether the recurrence has one."""

    bias: bool


class RelationTrainSettings(TreeTrainSettings):
    """`rare`: relations that fewer training words have share one matrix."""

    rare: Positive


class RecurrentTrainSettings(TrainSettings):
    """`hidden`: of each direction of the network that reads words."""

    hidden: Positive


class DenseTrainSettings(TrainSettings):
    """`simplified_epochs`: how many learn from whole sentences alone; after them correspondences are chosen again every
    `correspondence_epochs`. `phrase_share`: of the phrases' loss against the sentences'. `phrase_contrasts`: see
    DenseObjective. `forget_bias`: b^(f) at the beginning."""

    simplified_epochs: Count
    correspondence_epochs: Positive
    phrase_share: NonNegative
    phrase_contrasts: Literal["other-images", "batch", "own-image"]
    forget_bias: Number


class FragmentTrainSettings(TrainSettings):
    """`sum` and `global_weight` are ScoreRule's; `element_clip`, where it is not None, is the greatest size of any
    entry of the gradient."""

    sum: Literal["words", "mean-words", "positive"]
    global_weight: NonNegative
    element_clip: AboveZero | None


class WordFragmentTrainSettings(FragmentTrainSettings):
    """`hidden`: of the network that reads words."""

    hidden: Positive


class RelationFragmentTrainSettings(FragmentTrainSettings):
    """`least_share`: of all words with a head; relations that fewer have are left out."""

    least_share: Annotated[NonNegative, Field(le=1)]


class InstanceTrainSettings(RelationFragmentTrainSettings):
    """`instance_weight` is MultipleInstance's."""

    instance_weight: NonNegative


class StudySettings(Section):
    folds: Annotated[Positive, Field(ge=2)]
    order: Literal["listed", "shuffled"]
    draws: Positive
    further_draws: Positive
    protocol: Protocol
    sizes: tuple[Positive, Positive, Positive]
    transfer_sizes: tuple[Positive, Positive, Positive]
    weak_sizes: tuple[Positive, Positive, Positive, Positive]
    terms: tuple[Positive, Positive, Positive]
    noise: tuple[Name, ...]
    weights: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    fit: FitSettings


class PhrasesSettings(Section):
    splits: tuple[Described, ...]
    models: tuple[Name, ...] | None
    names: str | None
    least_overlap: PositiveShare


class AlignSettings(Section):
    splits: tuple[Described, ...]
    beta: NonNegative
    least_count: Positive


class CslsSettings(Section):
    neighbours: Annotated[tuple[Positive, ...], Field(min_length=1)]
    weight: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    bank: Positive
    bank_of_sets: Positive


class EnsembleDefaults(Section):
    weights: Annotated[tuple[NonNegative, ...], Field(min_length=1)]


class EnsembleSettings(EnsembleDefaults):
    members: Annotated[tuple[Name, ...], Field(min_length=2)]

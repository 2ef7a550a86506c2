"""Sections about models, their training, variants and ensembles, and the meaning of a model's name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, field_validator, model_validator

from pipeline.config.registry import MODELS, TRAININGS, ModelSpec
from pipeline.config.section import (
    AboveZero,
    BelowOne,
    Count,
    ImportPath,
    Name,
    Names,
    NonNegative,
    NonNegatives,
    Number,
    OneOf,
    Place,
    Positive,
    Positives,
    PositiveShare,
    Precision,
    Section,
    Seed,
    Seeds,
    Share,
    key,
)
from pipeline.config.text import WordVectorsSettings

AboveZeros = Annotated[tuple[AboveZero, ...], Field(min_length=1)]
Eigenvalues = Annotated[tuple[Literal["correlation", "gong"], ...], Field(min_length=1)]
FragmentSum = Literal["words", "mean-words", "positive"]
Loss = Literal["info-nce", "ranking", "squared"]
Optimiser = Literal["adam", "sgd", "momentum", "adagrad"]
Kernel = Literal["linear", "rbf", "laplacian", "cosine", "polynomial"]


class FitSettings(Section):
    """The values that a fit tries.

    `search` says which pairs of ridges are tried. `grid` tries every pair. `lines` tries all image ridges at one text
    ridge, then all text ridges at the best image ridge, and so on in turn until no ridge changes. `walk` tries the
    middle pair, then the neighbours of the best pair, until none is better. The values of all other keys are tried in
    every combination.
    """

    dimensions: Positives = key((32, 64, 96, 128, 192), "c, dimensions of the joint space")
    image_ridge: NonNegatives = key((0.01, 0.1, 0.3, 1, 3, 10), "relative to the mean variance of the features")
    text_ridge: NonNegatives = key((0.01, 0.1, 0.3, 1, 3, 10), "likewise")
    eigenvalue_power: NonNegatives = key((0, 0.5, 1, 2, 4), "t of Gong et al. 2014, equation 2")
    eigenvalues: Eigenvalues = key(
        ("correlation",), "lambda there: correlation (rho) | gong (1 + rho, as they published)"
    )
    search: Literal["grid", "lines", "walk"] = key(
        "lines", "lines (one ridge at a time) | walk (neighbours of the best) | grid (every pair of ridges)"
    )
    dev_images: Positive = key(1000, "dev images (the first ones) to judge the grid on")
    text_weights: dict[Name, NonNegatives] = key({}, "text encoder -> weights to try, instead of its entry's")


class TransferSettings(Section):
    """How a fit uses auxiliary pairs. Every combination of values is tried on dev."""

    beta: NonNegatives = key((0.1, 0.3, 1), "joint: factor on auxiliary rows")
    auxiliary_dimensions: Positives = key((128,), "c1 of stacked, sae-linear and sae")
    auxiliary_power: NonNegatives = key((1,), "t of the auxiliary projection")
    auxiliary_eigenvalues: Eigenvalues = key(("correlation",), "lambda of it, as in fit")
    weight: NonNegatives = key((1,), "length of the stacked columns relative to the original ones")
    second_beta: NonNegatives = key(
        (0,), "sae, sae-linear: scale of auxiliary rows in the second CCA; the paper's is 0"
    )
    rule: Annotated[tuple[Literal["cosine-sine", "paper", "tanh"], ...], Field(min_length=1)] = key(
        ("cosine-sine",), "sae: phi; how R and b are drawn, cosine-sine | paper, or tanh, without them"
    )
    bandwidth: AboveZeros = key((1,), "sae: multiples of sigma, the mean distance to the 50th neighbour (tanh: of z)")
    scale: Annotated[tuple[Literal["unit-variance", "unit-sum", "published"], ...], Field(min_length=1)] = key(
        ("unit-variance",),
        "sae: of the views that phi sees, on which rule `paper` and tanh depend: unit-variance | unit-sum (W'X'XW = I,"
        " Gong et al. 2014, equation 1) | published (their code: both views together have a variance of 1)",
    )
    features: Positive = key(3000, "sae: dimensions of the random Fourier map")
    neighbours: Positive = key(50, "text-feature: k")
    neighbour_share: NonNegatives = key(
        (0.03, 0.1, 0.3, 1), "text-feature: total variance of the mean texts, as a share of the image view's"
    )

    @model_validator(mode="after")
    def _frequencies_are_whole(self) -> "TransferSettings":
        if "cosine-sine" in self.rule and self.features % 2:
            raise ValueError("features: must be even for the rule cosine-sine, which uses every frequency twice")
        return self


class KernelsSettings(Section):
    """CCA with kernels"""

    image_kernel: Kernel = key("rbf", "linear | rbf | laplacian | cosine | polynomial, as scikit-learn has them")
    text_kernel: Kernel = key("cosine", "likewise")
    score: Literal["cosine", "product", "distance"] = key(
        "cosine", "cosine (Gong et al. 2014, equation 2) | product | distance (Socher et al. 2014, section 5)"
    )


class WsabieSettings(Section):
    """a ranking loss on two linear maps"""

    learning_rate: AboveZeros = key((0.5, 1, 2, 4, 8), "on the mean gradient of a batch; chosen on dev, as is max_norm")
    max_norm: AboveZeros = key((10, 20, 50, 100, 200), "alpha, greatest squared length of a column")
    batch_size: Positive = key(256, "pairs of a step, whose mean gradient it takes; the paper's is 1")
    dimensions: Positive = key(96, "c")
    epochs: Positive = key(300, "most epochs")


class WsabieAdaGradSettings(WsabieSettings, learning_rate=(0.2, 0.4, 0.6, 0.8, 1)):
    """by AdaGrad"""


class TrainSettings(Section):
    dimensions: Positive = key(
        512, "K, dimensions of the joint space (bow: of the word vectors; ncca-refined: as its start)"
    )
    loss: Loss = key(
        "info-nce", "info-nce | ranking (Kiros et al. 2014, equation 6) | squared (Socher et al. 2014, section 5)"
    )
    score: Literal["cosine", "product"] = key(
        "cosine", "cosine | product (of vectors of any length; Socher et al. 2014, equation 5); squared: distance"
    )
    negatives: Literal["all", "distinct", "hardest", "sampled"] = key(
        "all",
        "all (of the batch) | distinct (each image of it once) | hardest (of it) | sampled (from the training set)",
    )
    reduction: Literal["mean", "sum"] = key("mean", "of a batch's losses: mean | sum (as in the papers)")
    contrastive: Positive = key(100, "negatives sampled: number per batch")
    margin: NonNegative = key(0.2, "ranking: alpha")
    temperature: AboveZero = key(0.05, "info-nce")
    optimiser: Optimiser = key("adam", "adam | sgd | momentum (sgd with a momentum of 0.9) | adagrad")
    learning_rate: AboveZero = key(0.001, "initial")
    decay: PositiveShare = key(0.85, "factor on the learning rate after every epoch")
    weight_decay: NonNegative = key(
        0, "pull towards zero (models that start from an ncca: to the start; trees: the identity)"
    )
    penalty: NonNegative = key(0, "lambda, penalty on the parameters (Socher et al. 2014, section 5)")
    averaging: BelowOne = key(0, "share that the running average of the parameters keeps per step; 0: no average")
    dropout: BelowOne = key(0.3, "on image features, words and caption vectors")
    encoder_dropout: BelowOne = key(0, "share of images that lack the features of an encoder")
    clip: AboveZero = key(2, "greatest norm of the gradient")
    batch_size: Annotated[Positive, Field(ge=2)] = key(128, "pairs per batch")
    epochs: Positive = key(10, "most epochs")
    patience: Positive = key(3, "epochs without a better recall sum on dev before training stops")
    precision: Precision = key("auto", "of recurrent products: auto (bfloat16 where it is fast) | float32 | bfloat16")
    checkpoint_seconds: NonNegative = key(60, "a killed job repeats at most this many seconds")

    @model_validator(mode="after")
    def _hardest_is_of_the_ranking_loss(self) -> "TrainSettings":
        if self.loss == "info-nce" and self.negatives == "hardest":
            raise ValueError("negatives: hardest goes with loss: ranking; choose all or sampled for info-nce")
        return self


class LongShortTermTrainSettings(TrainSettings):
    peepholes: bool = key(False, "whether gates see the cell (Kiros et al. 2014, equations 1, 2 and 4)")
    forget_bias: Number = key(0, "initial, of the forget gates; 0 forgets half of the cell at every word")


class TreeTrainSettings(TrainSettings):
    activation: Literal["tanh", "relu", "sigmoid", "identity"] = key(
        "tanh", "f of the states: tanh | relu | sigmoid | identity (Socher et al. 2014 try all four)"
    )


class PlainTrainSettings(TreeTrainSettings):
    bias: bool = key(True, "whether the recurrence adds a bias")


class RelationTrainSettings(TreeTrainSettings):
    rare: Positive = key(100, "dependency relations of fewer training words share one matrix")


class RefinedTrainSettings(
    TrainSettings, temperature=0.07, averaging=0.98, encoder_dropout=0.5, batch_size=512, decay=0.9, epochs=12
):
    """strong ridges in `fit` leave it more to refine"""


class RecurrentTrainSettings(RefinedTrainSettings):
    """ncca-refined whose sentence tower also reads the words in order"""

    hidden: Positive = key(128, "units per direction of the network that reads words")


class DenseTrainSettings(TrainSettings):
    """needs regions of the model's encoders"""

    simplified_epochs: Count = key(3, "first epochs, on whole captions only")
    correspondence_epochs: Positive = key(2, "epochs between two choices of every phrase's region")
    phrase_share: NonNegative = key(0.3, "weight of the phrases' loss against the sentences'")
    phrase_contrasts: Literal["other-images", "batch", "own-image"] = key(
        "other-images",
        "of a phrase and its region: other-images (of the batch) | batch (its own image too) | own-image (alone: Niu"
        " et al. 2017, equation 9, by its index)",
    )
    forget_bias: Number = key(0, "initial, of the forget gates; 0 halves what a word leaves at every phrase above it")


class FragmentTrainSettings(TrainSettings):
    sum: FragmentSum = key(
        "mean-words", "words (the best region of each, summed) | mean-words | positive (all positive products)"
    )
    global_weight: NonNegative = key(0, "fragments: weight of the product of whole image and whole caption")
    element_clip: AboveZero | None = key(5, "greatest absolute value of a gradient entry; null: no limit")


class WordFragmentTrainSettings(
    FragmentTrainSettings,
    clip=1_000_000, temperature=0.1, averaging=0.98, dropout=0.2, batch_size=100, epochs=15,
):  # fmt: skip
    """needs regions; Karpathy and Fei-Fei 2015: sum words, loss ranking, margin 1, optimiser momentum"""

    hidden: Positive = key(300, "units of the bidirectional network")


class RelationFragmentTrainSettings(
    FragmentTrainSettings,
    sum="words", clip=1_000_000, loss="ranking", reduction="sum", margin=1, optimiser="momentum", learning_rate=4e-5,
    dropout=0.1, batch_size=100, epochs=15,
):  # fmt: skip
    """needs regions; the relations of dependency trees in place of words ("DepTree edges")"""

    least_share: Share = key(0.01, "of words with a head that a relation must have (Karpathy et al. 2014)")


class InstanceTrainSettings(RelationFragmentTrainSettings, sum="positive"):
    """with the multiple-instance objective of Karpathy et al. 2014"""

    instance_weight: NonNegative = key(100, "weight of the multiple-instance objective")


class GroundedTrainSettings(
    FragmentTrainSettings,
    global_weight=2, element_clip=None, temperature=0.1, learning_rate=0.0003, decay=0.7, averaging=0.98,
    encoder_dropout=0.5, batch_size=256, epochs=3,
):  # fmt: skip
    """begins from an ncca-recurrent on encoders that have regions"""


HubnessMethod = Literal["csls", "nnn", "sinkhorn"]
HUBNESS: tuple[HubnessMethod, ...] = get_args(HubnessMethod)
"""Methods of hubness correction (models.linear.hubness)."""
ChosenHubness = Literal["none", "auto", HubnessMethod]
"""The hubness correction of a model. `auto` takes the best method on dev."""
REMOVED_HUBNESS = ("inverted-softmax", "dual-softmax")
"""Methods of earlier versions."""


class HubnessSettings(Section):
    neighbours: Positives = key((10, 20, 50, 100, 200), "csls, nnn: k, neighbours in the bank")
    weight: NonNegatives = key(
        (0, 0.25, 0.5, 0.75, 1), "csls, nnn: weight of the mean of k products; 0.5 is the paper's for csls"
    )
    sharpness: AboveZeros = key((0.5, 1, 2, 4, 8), "sinkhorn: beta, times the scores' standard deviation")
    bank: Positive = key(5000, "images and captions of train to measure on (refit: of train and dev)")
    queries: Place | None = key(None, "text file of real queries, one per line, instead of train's captions")


class Variant(Seeds):
    """A model with settings of its own. Further keys are settings of its model."""

    model_config = ConfigDict(extra="allow")
    model: Annotated[str, OneOf(tuple(spec.name for spec in MODELS if spec.made_by != "combine"))] | ImportPath = key(
        ..., "a registered model, or module:Class of yours"
    )
    encoders: Names | None = key(None, "some of `encoders`; null: all")
    text_encoders: Names | None = key(None, "some of `text_encoders`; null: all")
    training: Annotated[str, OneOf(tuple(TRAININGS))] = key(
        "target", "target | auxiliary | joint | text-feature | stacked | sae-linear | sae"
    )
    documents: Name = key("all", "the weak texts that training uses")
    seed: Seed | None = key(None, "of this model; null: `seed`")
    hubness: ChosenHubness = key(
        "none",
        "none | csls (or `csls: true`) | nnn | sinkhorn | auto (the better of nnn and sinkhorn on dev, per direction)",
    )
    refit: bool = key(False, "fit again to train and dev, with what dev chose before")
    fit: dict[str, Any] = key({}, "any keys of the section fit")
    transfer: dict[str, Any] = key({}, "any keys of the section transfer")
    word_vectors: dict[str, Any] = key({}, "any keys of the section word_vectors")

    @model_validator(mode="before")
    @classmethod
    def _check_hubness(cls, values: object) -> object:
        """Refuse removed methods, and write `csls: true` as `hubness: csls`."""
        if not isinstance(values, Mapping):
            return values
        if values.get("hubness") in REMOVED_HUBNESS:
            raise ValueError(
                f"hubness: {values['hubness']} was removed, because csls is better on test; write hubness: csls, or"
                f" choose another of {', '.join(HUBNESS)} and auto"
            )
        if "csls" not in values:
            return values
        written = str(values["csls"]).lower()
        if written not in ("true", "false"):
            raise ValueError(f"csls must be true or false, not {values['csls']}; hubness names other methods")
        if "hubness" in values:
            raise ValueError(
                f"csls: {written} and hubness: {values['hubness']} both choose the hubness correction. Remove one"
            )
        rest = {key: value for key, value in values.items() if key != "csls"}
        return {"hubness": "csls" if written == "true" else "none", **rest}

    @property
    def named(self) -> dict[str, Any]:
        """The hyperparameters that the variant itself names, by their paths."""
        sections = {"fit": self.fit, "transfer": self.transfer, "word_vectors": self.word_vectors}
        below = {f"{name}.{key}": value for name, values in sections.items() for key, value in values.items()}
        return {**(self.model_extra or {}), **below}


@dataclass(frozen=True)
class Model:
    """The meaning of a model's name: a registered model, its encoders, and all its settings."""

    spec: ModelSpec
    encoders: tuple[str, ...]
    text_encoders: tuple[str, ...]
    text_weights: Mapping[str, tuple[float, ...]]
    """Text encoder -> the weights of its block that are tried."""
    training: str
    documents: str
    """The weak texts that its training uses."""
    seed: int
    settings: Section | None
    """The settings that only this registered model has."""
    fit: FitSettings
    transfer: TransferSettings
    word_vectors: WordVectorsSettings
    """The first word vectors of a model that reads words."""
    named: Mapping[str, Any] = field(compare=False)
    """The hyperparameters that the variant itself names, by their paths."""

    @property
    def train_settings(self) -> TrainSettings:
        """The settings of a model that is trained."""
        assert isinstance(self.settings, TrainSettings)
        return self.settings

    def learns_like(self, other: "Model") -> bool:
        """Whether it learns from the same features as `other`, in the same way."""
        ours, theirs = ((one.encoders, one.text_encoders, one.training) for one in (self, other))
        return ours == theirs

    @property
    def unit(self) -> bool:
        """Whether it compares unit vectors."""
        own = self.settings.model_dump() if self.settings else {}
        cosine = own.get("loss") != "squared" and own.get("score", "cosine") == "cosine"
        return self.spec.metric == "inner_product" and cosine

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The values that decide, together with its inputs, how the model is made, as JSON values."""
        found = {"model": self.spec.name, "encoders": self.encoders, "training": self.training, "seed": self.seed}
        if self.spec.sentences == "vectors":
            found["text_encoders"] = self.text_encoders
        if self.training != "target":
            found["documents"] = self.documents
            found["transfer"] = self.transfer.model_dump(include=set(TRAININGS[self.training]))
        if self.spec.made_by == "fit":
            found["fit"] = self.fit.model_dump(include=self.spec.fit_keys - {"text_weights"})
            found["text_weights"] = self.text_weights
        return found | ({"settings": self.settings.model_dump(exclude={"checkpoint_seconds"})} if self.settings else {})


class EnsembleSettings(Section):
    """A model that adds up the scores of other models."""

    members: Annotated[Names, Field(min_length=2)] = key(..., "models whose scores are added up")
    refit: bool = key(False, "refit the members, with the weights that dev chose before")
    weights: NonNegatives = key(
        (0, 0.25, 0.5, 1), "values to try on a member's scores, divided by their standard deviation; 0 leaves it out"
    )

    @field_validator("weights")
    @classmethod
    def _some_are_positive(cls, weights: tuple[float, ...]) -> tuple[float, ...]:
        if not any(weights):
            raise ValueError("no weight is positive; give one that is")
        return weights

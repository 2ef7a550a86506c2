"""Sections of the configuration about models, trainings, variants and ensembles."""

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
FragmentSum = Literal["words", "mean-words", "positive", "mean-positive"]
Loss = Literal["info-nce", "ranking", "squared"]
Optimiser = Literal["adam", "sgd", "momentum", "adagrad"]
Kernel = Literal["linear", "rbf", "laplacian", "cosine", "polynomial"]


class FitSettings(Section):
    """The values that a fit of a linear model tries on dev.

    `search` decides which pairs of ridges are tried. `grid` tries every pair. `lines` tries all image ridges with one
    text ridge, then all text ridges with the best image ridge, and so on in turn until no ridge changes. `walk` tries
    the middle pair, and then the neighbours of the best pair until no neighbour is better. The values of all other
    lists are tried in every combination.
    """

    dimensions: Positives = key(
        (32, 64, 96, 128, 192), "Number of dimensions of the joint space (c in Gong et al. 2014)."
    )
    image_ridge: NonNegatives = key(
        (0.01, 0.1, 0.3, 1, 3, 10), "Ridge of the image view, relative to the mean variance of its features."
    )
    text_ridge: NonNegatives = key(
        (0.01, 0.1, 0.3, 1, 3, 10), "Ridge of the text view, relative to the mean variance of its features."
    )
    eigenvalue_power: NonNegatives = key(
        (0, 0.5, 1, 2, 4), "Exponent on the canonical correlations (t in Gong et al. 2014, equation 2)."
    )
    eigenvalues: Eigenvalues = key(
        ("correlation",),
        "Base of eigenvalue_power (lambda in equation 2): correlation (rho) | gong (1 + rho, as in the published "
        "code).",
    )
    search: Literal["grid", "lines", "walk"] = key(
        "lines",
        "Order in which ridges are tried: lines (one ridge at a time) | walk (neighbours of the "
        "best pair) | grid (every pair).",
    )
    dev_images: Positive = key(1000, "Number of dev images, from the first, on which the values are compared.")
    text_weights: dict[Name, NonNegatives] = key(
        {},
        "Weights to try for each text encoder, as {text encoder: [weights]}. They replace the key "
        "`weight` of its entry.",
    )


class TransferSettings(Section):
    """Settings of a fit that uses auxiliary pairs. Each description begins with the names of the trainings that use the
    key. A training tries every combination of the values of its keys on dev."""

    beta: NonNegatives = key((0.1, 0.3, 1), "joint: factor on the vectors of auxiliary pairs.")
    auxiliary_dimensions: Positives = key(
        (128,), "stacked, sae-linear, sae: number of dimensions of the auxiliary projection (c1)."
    )
    auxiliary_power: NonNegatives = key(
        (1,), "stacked, sae-linear, sae: exponent on the canonical correlations of the auxiliary projection (t)."
    )
    auxiliary_eigenvalues: Eigenvalues = key(
        ("correlation",), "stacked, sae-linear, sae: base of auxiliary_power, as fit.eigenvalues."
    )
    weight: NonNegatives = key((1,), "sae-linear, sae: length of the stacked columns relative to the original columns.")
    second_beta: NonNegatives = key(
        (0,), "sae-linear, sae: factor on the vectors of auxiliary pairs in the second CCA. The paper has 0."
    )
    rule: Annotated[tuple[Literal["cosine-sine", "paper", "tanh"], ...], Field(min_length=1)] = key(
        ("cosine-sine",),
        "sae: random features phi. cosine-sine and paper are two ways to draw R and b, and tanh uses neither.",
    )
    bandwidth: AboveZeros = key(
        (1,), "sae: bandwidth in multiples of sigma, the mean distance to the 50th neighbour (for tanh, a factor on z)."
    )
    scale: Annotated[tuple[Literal["unit-variance", "unit-sum", "published"], ...], Field(min_length=1)] = key(
        ("unit-variance",),
        "sae: scale of the views before phi, for the rules paper and tanh: unit-variance | unit-sum "
        "(W'X'XW = I, Gong et al. 2014, equation 1) | published (as in the published code, both "
        "views together have a variance of 1).",
    )
    features: Positive = key(3000, "sae: number of dimensions of the random Fourier features.")
    neighbours: Positive = key(50, "text-feature: number of nearest auxiliary images whose texts are averaged (k).")
    neighbour_share: NonNegatives = key(
        (0.03, 0.1, 0.3, 1),
        "text-feature: total variance of the averaged texts, as a share of the variance of the image view.",
    )

    @model_validator(mode="after")
    def _frequencies_are_whole(self) -> "TransferSettings":
        if "cosine-sine" in self.rule and self.features % 2:
            raise ValueError(
                "features must be even for the rule cosine-sine, which uses every frequency twice. Add or subtract 1"
            )
        return self


class KernelsSettings(Section):
    """Settings of kernel CCA."""

    image_kernel: Kernel = key(
        "rbf", "Kernel of the image view: linear | rbf | laplacian | cosine | polynomial, as in scikit-learn."
    )
    text_kernel: Kernel = key(
        "cosine", "Kernel of the text view: linear | rbf | laplacian | cosine | polynomial, as in scikit-learn."
    )
    score: Literal["cosine", "product", "distance"] = key(
        "cosine",
        "Score of a pair: cosine (Gong et al. 2014, equation 2) | product | distance (Socher et al. 2014, section 5).",
    )


class AnchorSettings(Section):
    """Relative representations by training pairs (ASIF)."""

    nonzero: Positives = key(
        (10, 30, 100, 300, 800), "Numbers of anchors per item (k) to try on dev. The paper has 800."
    )
    power: AboveZeros = key((1, 2, 4, 8, 16), "Exponents on the cosines (p) to try on dev. The paper has 8.")
    anchors: Positive = key(
        5000,
        "Largest number of training pairs that are anchors. The joint space has a dimension for each anchor.",
    )


class WsabieSettings(Section):
    """Two linear maps that are trained with a ranking loss, by SGD."""

    learning_rate: AboveZeros = key(
        (0.5, 1, 2, 4, 8), "Learning rates to try on dev, for the mean gradient of a batch."
    )
    max_norm: AboveZeros = key(
        (10, 20, 50, 100, 200), "Largest squared lengths of a column of weights (alpha) to try on dev."
    )
    batch_size: Positive = key(256, "Number of pairs per step, whose mean gradient is applied. The paper has 1.")
    dimensions: Positive = key(96, "Number of dimensions of the joint space (c).")
    epochs: Positive = key(300, "Largest number of epochs.")


class WsabieAdaGradSettings(WsabieSettings, learning_rate=(0.2, 0.4, 0.6, 0.8, 1)):
    """The same model as wsabie-sgd, trained by AdaGrad."""


class TrainSettings(Section):
    dimensions: Positive = key(
        512,
        "Number of dimensions of the joint space (K). bow has the dimensions of its word vectors, "
        "and ncca-refined and ncca-recurrent have the dimensions of the model that they start from.",
    )
    loss: Loss = key(
        "info-nce",
        "Loss: info-nce | ranking (Kiros et al. 2014, equation 6) | squared (Socher et al. 2014, section 5).",
    )
    score: Literal["cosine", "product"] = key(
        "cosine",
        "Score of a pair: cosine | product (of vectors of any length, Socher et al. 2014, equation "
        "5). The squared loss uses the distance.",
    )
    negatives: Literal["all", "distinct", "hardest", "sampled"] = key(
        "all",
        "Negative pairs: all (other pairs of the batch) | distinct (the same, but each image once) | "
        "hardest (the best-scoring negative in the batch) | sampled (drawn from the training set for each batch).",
    )
    reduction: Literal["mean", "sum"] = key(
        "mean", "Reduction of the losses in a batch: mean | sum (as in the papers)."
    )
    contrastive: Positive = key(100, "Number of negatives per batch, for negatives: sampled.")
    margin: NonNegative = key(0.2, "Margin of the ranking loss (alpha).")
    temperature: AboveZero = key(0.05, "Temperature of the info-nce loss.")
    optimiser: Optimiser = key("adam", "Optimiser: adam | sgd | momentum (sgd with a momentum of 0.9) | adagrad.")
    learning_rate: AboveZero | AboveZeros = key(
        0.001,
        "Learning rate at the start. If it is a list, dev chooses one of its rates. Models that differ only in "
        "their seeds have the rate that is chosen for the first of them.",
    )
    decay: PositiveShare = key(0.85, "Factor on the learning rate per epoch. The rate decreases in every step.")
    weight_decay: NonNegative = key(
        0,
        "Weight decay per step, as a multiple of the learning rate. It pulls parameters towards zero, in models that "
        "start from an ncca towards the start, and the matrices of tree models towards the identity.",
    )
    penalty: NonNegative = key(
        0, "Weight of the squared parameters in the loss (lambda in Socher et al. 2014, section 5)."
    )
    averaging: BelowOne = key(0, "Decay of the running average of the parameters per step. 0 turns averaging off.")
    dropout: BelowOne = key(0.3, "Dropout on image features, words and caption vectors.")
    encoder_dropout: BelowOne = key(0, "Probability that an image lacks the features of an encoder in training.")
    clip: AboveZero = key(2, "Largest norm of the gradient.")
    batch_size: Annotated[Positive, Field(ge=2)] = key(128, "Number of pairs per batch.")
    epochs: Positive = key(10, "Largest number of epochs.")
    patience: Positive = key(
        3,
        "Number of epochs without a better result on dev after which training stops. The result is the sum of recalls, "
        "or the mean rank if `score` is product or `loss` is squared.",
    )
    precision: Precision = key(
        "auto", "Number type of recurrent products: auto (bfloat16 if it is fast) | float32 | bfloat16."
    )
    checkpoint_seconds: NonNegative = key(
        60, "Number of seconds between two checkpoints. A killed job repeats about this many seconds."
    )

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates to try, also if `learning_rate` is a single number."""
        return self.learning_rate if isinstance(self.learning_rate, tuple) else (self.learning_rate,)

    @model_validator(mode="after")
    def _hardest_is_of_the_ranking_loss(self) -> "TrainSettings":
        if self.loss == "info-nce" and self.negatives == "hardest":
            raise ValueError("negatives: hardest needs loss: ranking. For info-nce, choose all or sampled")
        return self


class LongShortTermTrainSettings(TrainSettings):
    peepholes: bool = key(False, "Whether the gates see the cell (Kiros et al. 2014, equations 1, 2 and 4).")
    forget_bias: Number = key(
        0, "Initial bias of the forget gates. With 0, half of the cell is forgotten at every word."
    )


class TreeTrainSettings(TrainSettings):
    activation: Literal["tanh", "relu", "sigmoid", "identity"] = key(
        "tanh", "Activation of the states (f): tanh | relu | sigmoid | identity (Socher et al. 2014 try all four)."
    )


class PlainTrainSettings(TreeTrainSettings):
    bias: bool = key(True, "Whether the recurrence has a bias.")


class RelationTrainSettings(TreeTrainSettings):
    rare: Positive = key(
        100,
        "Smallest number of training words for a dependency relation with its own matrix. Rarer "
        "relations share one matrix.",
    )


class RefinedTrainSettings(
    TrainSettings, temperature=0.07, averaging=0.98, encoder_dropout=0.5, batch_size=512, decay=0.9, epochs=12
):
    """A model that starts from an ncca and is trained further.

    The training improves the ncca more if the ridges in `fit` are strong.
    """


class ProjectorTrainSettings(TrainSettings, dimensions=256, temperature=0.07, decay=1, batch_size=512, epochs=60):
    """Layers that are trained on the vectors of frozen encoders, from random weights."""

    layers: Literal[1, 2] = key(2, "Number of layers on each side. One layer is a linear map.")
    hidden: Positive = key(512, "Number of units between two layers.")
    structure: NonNegative = key(
        0, "Weight of the regulariser STRUCTURE (lambda in Gröger et al. 2025). The paper has 10."
    )


class RecurrentTrainSettings(RefinedTrainSettings):
    """An ncca-refined whose text side also reads the words in order."""

    hidden: Positive = key(128, "Number of units per direction of the network that reads the words.")


class DenseTrainSettings(TrainSettings):
    """A model of phrases and regions. It needs regions of all encoders of the model."""

    simplified_epochs: Count = key(3, "Number of epochs at the start that use only whole captions.")
    correspondence_epochs: Positive = key(2, "Number of epochs after which the region of every phrase is chosen again.")
    phrase_share: NonNegative = key(0.3, "Weight of the loss of phrases relative to the loss of sentences.")
    phrase_contrasts: Literal["other-images", "batch", "own-image"] = key(
        "other-images",
        "Negatives of a phrase and its region: other-images (of the batch) | batch (regions of its "
        "own image too) | own-image (only regions of its own image, as in the index of Niu et al. "
        "2017, equation 9).",
    )
    forget_bias: Number = key(
        0, "Initial bias of the forget gates. With 0, the part of a word is halved at every phrase above it."
    )


class FragmentTrainSettings(TrainSettings):
    sum: FragmentSum = key(
        "mean-words",
        "Score of an image and a caption: words (sum over the words of the best product with a "
        "region) | mean-words (the mean) | positive (sum of all positive products) | mean-positive (the "
        "same, divided by the number of words).",
    )
    global_weight: NonNegative = key(0, "fragments: weight of the product of the whole image and the whole caption.")
    element_clip: AboveZero | None = key(5, "Largest absolute value of an element of the gradient. null sets no limit.")


class WordFragmentTrainSettings(
    FragmentTrainSettings,
    clip=1_000_000, temperature=0.1, averaging=0.98, dropout=0.2, batch_size=100, epochs=15,
):  # fmt: skip
    """A model of words and regions. It needs regions. Karpathy and Fei-Fei 2015 have sum: words, loss: ranking,
    margin: 1, optimiser: momentum."""

    hidden: Positive = key(300, "Number of units of the bidirectional network.")


class RelationFragmentTrainSettings(
    FragmentTrainSettings,
    sum="words", clip=1_000_000, loss="ranking", reduction="sum", margin=1, optimiser="momentum", learning_rate=4e-5,
    dropout=0.1, batch_size=100, epochs=15,
):  # fmt: skip
    """A model of dependency relations, in place of words, and regions ("DepTree edges"). It needs regions."""

    least_share: Share = key(
        0.01,
        "Smallest share of a relation among all words with a head. Rarer relations are not used "
        "(Karpathy et al. 2014).",
    )


class InstanceTrainSettings(RelationFragmentTrainSettings, sum="positive"):
    """A deptree with the multiple-instance objective of Karpathy et al. 2014."""

    instance_weight: NonNegative = key(100, "Weight of the multiple-instance objective.")


class GroundedTrainSettings(
    FragmentTrainSettings,
    global_weight=2, element_clip=None, temperature=0.1, learning_rate=0.0003, decay=0.7, averaging=0.98,
    encoder_dropout=0.5, batch_size=256, epochs=3,
):  # fmt: skip
    """A model of words and regions that starts from an ncca-recurrent, on encoders that have regions."""


HubnessMethod = Literal["csls", "nnn", "sinkhorn"]
HUBNESS: tuple[HubnessMethod, ...] = get_args(HubnessMethod)
"""Methods of hubness correction (pipeline.models.linear.hubness)."""
ChosenHubness = Literal["none", "auto", HubnessMethod]
"""The hubness correction of a model. `auto` chooses the better of nnn and sinkhorn on dev, for each direction
of search (from images to captions, and from captions to images)."""
REMOVED_HUBNESS = ("inverted-softmax", "dual-softmax")
"""Methods that earlier versions had. A configuration that names one of them gets an error that says so."""


class HubnessSettings(Section):
    neighbours: Positives = key((10, 20, 50, 100, 200), "csls, nnn: number of nearest neighbours in the bank (k).")
    weight: NonNegatives = key(
        (0, 0.25, 0.5, 0.75, 1), "csls, nnn: weight of the mean of the k products. The paper of csls has 0.5."
    )
    sharpness: AboveZeros = key(
        (0.5, 1, 2, 4, 8),
        "sinkhorn: inverse temperature (beta), in units of the inverse standard deviation of the scores.",
    )
    bank: Positive = key(
        5000,
        "Largest number of train images, and of train captions, against which hubs are measured. They are drawn at "
        "random. A refitted model uses train and dev.",
    )
    queries: Place | None = key(
        None,
        "Text file with real queries, one per line, that replace the train captions against which hubs among images "
        "are measured. They also measure the index of a run without captions.",
    )


class Variant(Seeds):
    """A model with settings of its own. Keys that are not listed here are settings of its registered model."""

    model_config = ConfigDict(extra="allow")
    model: Annotated[str, OneOf(tuple(spec.name for spec in MODELS if spec.made_by != "combine"))] | ImportPath = key(
        ..., "Name of a registered model, or module:Class of your own."
    )
    encoders: Names | None = key(None, "Image encoders of the model. null uses all of `encoders`.")
    text_encoders: Names | None = key(None, "Text encoders of the model. null uses all of `text_encoders`.")
    training: Annotated[str, OneOf(tuple(TRAININGS))] = key(
        "target",
        "Training: target (captions only) | auxiliary | joint | text-feature | stacked | sae-linear "
        "| sae. All but target use weak texts.",
    )
    documents: Name = key("all", "Entry of `documents` with the weak texts that the training uses.")
    seed: Seed | None = key(None, "Seed of this model. null uses `seed`.")
    hubness: ChosenHubness = key(
        "none",
        "Hubness correction: none | csls (or `csls: true`) | nnn | sinkhorn | auto (nnn or "
        "sinkhorn, whichever is better on dev, for each direction).",
    )
    refit: bool = key(
        False, "Whether to fit the model again to train and dev together, with the parameters that were chosen on dev."
    )
    fit: dict[str, Any] = key({}, "Keys of the section `fit` that this model changes.")
    transfer: dict[str, Any] = key({}, "Keys of the section `transfer` that this model changes.")
    word_vectors: dict[str, Any] = key({}, "Keys of the section `word_vectors` that this model changes.")

    @model_validator(mode="before")
    @classmethod
    def _check_hubness(cls, values: object) -> object:
        """Convert `csls: true` to `hubness: csls`, and `csls: false` to `hubness: none`.

        Raises ValueError for a removed method, for another value of `csls`, and if both keys are given.
        """
        if not isinstance(values, Mapping):
            return values
        if values.get("hubness") in REMOVED_HUBNESS:
            raise ValueError(
                f"hubness: {values['hubness']} was removed, because csls has a higher recall. Write hubness: csls, or"
                f" choose another of {', '.join(HUBNESS)} and auto"
            )
        if "csls" not in values:
            return values
        written = str(values["csls"]).lower()
        if written not in ("true", "false"):
            raise ValueError(f"csls must be true or false, not {values['csls']}. The key hubness names other methods")
        if "hubness" in values:
            raise ValueError(
                f"csls: {written} and hubness: {values['hubness']} both choose the hubness correction. Remove one of"
                " the two keys"
            )
        rest = {key: value for key, value in values.items() if key != "csls"}
        return {"hubness": "csls" if written == "true" else "none", **rest}

    @property
    def named(self) -> dict[str, Any]:
        """The settings that the variant itself sets, as key -> value.

        The key of a setting in `fit`, `transfer` or `word_vectors` begins with the section, such as `fit.dimensions`.
        """
        sections = {"fit": self.fit, "transfer": self.transfer, "word_vectors": self.word_vectors}
        below = {f"{name}.{key}": value for name, values in sections.items() for key, value in values.items()}
        return {**(self.model_extra or {}), **below}


@dataclass(frozen=True)
class Model:
    """A model of the configuration: its registered model, its encoders, and all of its settings.

    `fit` and `transfer` are the sections of the configuration with the changes that the variant of the model makes.
    """

    spec: ModelSpec
    encoders: tuple[str, ...]
    text_encoders: tuple[str, ...]
    text_weights: Mapping[str, tuple[float, ...]]
    """The weights to try for the vectors of each text encoder."""
    training: str
    """The training, a key of TRAININGS in pipeline.config.registry."""
    documents: str
    """The entry of `documents` with the weak texts that the training of the model uses."""
    seed: int
    settings: Section | None
    """The section of the registered model, with the changes of the variant, or None if there is no such section."""
    fit: FitSettings
    transfer: TransferSettings
    word_vectors: WordVectorsSettings
    """The settings of word vectors. The training of a model that reads words starts from such word vectors."""
    named: Mapping[str, Any] = field(compare=False)
    """The settings that the variant itself sets, as in `Variant.named`. A model without a variant sets none."""

    @property
    def train_settings(self) -> TrainSettings:
        """The settings of the model as TrainSettings. Raises AssertionError for a model that the stage `train` does not
        make."""
        assert isinstance(self.settings, TrainSettings)
        return self.settings

    def learns_like(self, other: "Model") -> bool:
        """Return whether this model and `other` have the same encoders and the same training."""
        own, others = ((model.encoders, model.text_encoders, model.training) for model in (self, other))
        return own == others

    @property
    def unit(self) -> bool:
        """Whether the model compares images and captions by cosine, that is, by the product of unit vectors."""
        own = self.settings.model_dump() if self.settings else {}
        cosine = own.get("loss") != "squared" and own.get("score", "cosine") == "cosine"
        return self.spec.metric == "inner_product" and cosine

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The settings of the model itself on which the fitted model depends, as JSON values.

        The transforms of the features, and the settings of word vectors and of regions, are not included.
        """
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
    """A model that adds the scores of other models."""

    members: Annotated[Names, Field(min_length=2)] = key(..., "Models whose scores are added.")
    refit: bool = key(
        False,
        "Whether to fit the members again to train and dev. The weights that were chosen on dev are kept.",
    )
    weights: NonNegatives = key(
        (0, 0.25, 0.5, 1),
        "Weights that dev tries for the scores of each member. The scores are first divided by their standard "
        "deviation. 0 removes the member.",
    )

    @field_validator("weights")
    @classmethod
    def _some_are_positive(cls, weights: tuple[float, ...]) -> tuple[float, ...]:
        if not any(weights):
            raise ValueError("no weight is positive. Give at least one positive weight")
        return weights

"""Sections about generators of descriptions."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from pipeline.config.registry import GENERATORS, GeneratorSpec
from pipeline.config.section import (
    AboveZero,
    BelowOne,
    Count,
    Described,
    Names,
    NonNegative,
    Place,
    Positive,
    PositiveShare,
    Precision,
    Section,
    Seed,
    Seeds,
    key,
)


class NearestSettings(Section):
    """in the joint space the distance is always the cosine"""

    by: Literal["features", "joint-image", "joint-sentence"] = key(
        "features",
        "nearest training image by features | joint-image (in the joint space) | joint-sentence (nearest caption)",
    )
    distance: Literal["cosine", "euclidean"] = key(
        "cosine",
        "by features: cosine of their view | euclidean, of features as the encoder gives them (Karpathy and Fei-Fei"
        " 2015, with one encoder of layer fc7)",
    )

    @property
    def in_space(self) -> bool:
        """Whether it uses the joint space of a model."""
        return self.by != "features"


class OptimisationSettings(Section):
    in_space: ClassVar[bool] = False
    optimiser: Literal["rmsprop", "adam", "sgd"] = key("rmsprop", "rmsprop | adam | sgd")
    learning_rate: AboveZero = key(0.002, "initial")
    decay: PositiveShare = key(0.75, "factor on the learning rate after every epoch")
    weight_decay: NonNegative = key(0, "pull towards zero, times the learning rate")
    averaging: BelowOne = key(0.99, "share that the running average of the parameters keeps per step")
    clip: AboveZero = key(5, "greatest absolute value of a gradient entry")
    dropout: BelowOne = key(0.4, "mrnn: of image, words and hidden state; others: of word vectors and factors")
    batch_size: Positive = key(128, "captions per batch")
    epochs: Positive = key(8, "most epochs")
    patience: Positive = key(2, "epochs without a lower perplexity on dev before training stops")
    checkpoint_seconds: NonNegative = key(60, "a killed job repeats at most this many seconds")
    precision: Precision = key("auto", "of the products: auto (bfloat16 where it is fast) | float32 | bfloat16")


class RecurrentSettings(OptimisationSettings):
    cell: Literal["rnn", "relu", "gru", "lstm"] = key(
        "lstm", "relu (Karpathy and Fei-Fei 2015, equation 14, with their f) | rnn (the same, f = tanh) | gru | lstm"
    )
    dimensions: Positive = key(256, "units of the hidden state")
    word_dim: Positive = key(256, "dimensions of the word vectors")


class RegionRecurrentSettings(RecurrentSettings):
    snippets: str | None = key(None, "the multi-vector model of `models` whose alignments it learns from")
    whole: bool = key(False, "the whole image's features too (Karpathy and Fei-Fei 2015, supplement 6.4)")


class RankedSnippetsSettings(Section):
    """ranks the snippets of train for each region (Karpathy and Fei-Fei 2015, Table 3)"""

    in_space: ClassVar[bool] = False
    snippets: str | None = key(None, "the multi-vector model of `models` whose snippets it ranks, such as dvsa")


class LogBilinearSettings(OptimisationSettings, dropout=0.2, epochs=6):
    """log-bilinear models; see Kiros et al. 2014"""

    in_space: ClassVar[bool] = True
    context: Positive = key(5, "n - 1, the words that the next one is predicted from")
    dimensions: Positive = key(200, "K, of word vectors; the paper has 300")
    factors: Positive = key(200, "mnlm, sc-nlm: F; the paper has 100")
    ahead: Count = key(2, "sc-nlm: k, parts of speech after the next word's own")
    gate_bias: bool = key(True, "mnlm, sc-nlm: gates have a bias; the paper's have none")


class ExtraTextSettings(Section):
    file: Place | None = key(None, "sentences without images, one per line, plain or .gz")
    column: Count = key(0, "the tab-separated column that holds the sentence")
    treebank: Place | None = key(None, "CoNLL-U that sc-nlm's tagger learns from; null: sc-nlm cannot be trained")


class DescribeSettings(Section):
    splits: tuple[Described, ...] = key(("test",), "splits to describe and judge")
    boxes: bool = key(False, "describe labelled boxes too (docs/trees.md)")
    region_texts: Place | None = key(None, "file under data_root of texts that people wrote for boxes (docs/trees.md)")
    space: str = key("ncca", "the model whose joint space mnlm, sc-nlm, lbl and nearest use")
    top: Positive = key(5, "descriptions per image, best first; the first is judged")
    beam: Positive = key(7, "mrnn: hypotheses kept; 1 is greedy")
    length_power: NonNegative = key(0.7, "mrnn: log probabilities are divided by length ** this")
    temperature: AboveZero | None = key(None, "mrnn: sentences are drawn at this temperature; null seeks the best")
    candidates: Positive = key(300, "lbl, mnlm, sc-nlm: candidates per image; 1000 in Kiros et al. 2014")
    meteor: bool = key(True, "if there is Java; all scores need jointspace[metrics]")


class GeneratorVariant(Seeds):
    """Keys beside these are settings of its generator."""

    model_config = ConfigDict(extra="allow")
    generator: Literal[tuple(spec.name for spec in GENERATORS)] = key(..., "a registered generator")
    encoders: Names | None = key(None, "some of `encoders`; null: all")
    seed: Seed | None = key(None, "of this generator; null: `seed`")


@dataclass(frozen=True)
class ChosenGenerator:
    """What the name of a generator means: the registered one, on which encoders, with which seed and settings."""

    spec: GeneratorSpec
    encoders: tuple[str, ...]
    seed: int
    settings: Any

    @property
    def precision(self) -> str:
        return getattr(self.settings, "precision", "float32")

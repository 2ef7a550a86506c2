"""Sections about the results of models: indexes, evaluations, the papers' tables, pages, and generated captions."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import ConfigDict, Field

from pipeline.config.encoders import ImageEncoderEntry
from pipeline.config.models import FitSettings
from pipeline.config.registry import GENERATORS, GeneratorSpec
from pipeline.config.section import (
    AboveZero,
    BelowOne,
    Count,
    Described,
    Name,
    Names,
    NonNegative,
    NonNegatives,
    OneOf,
    Place,
    Positive,
    PositiveShare,
    Precision,
    Protocol,
    Section,
    Seed,
    Seeds,
    Split,
    key,
)


class StudyFitSettings(
    FitSettings,
    dimensions=(96, 128), image_ridge=(0.3, 1, 3, 10), text_ridge=(0.3, 1, 3), eigenvalue_power=(1, 4),
    eigenvalues=("correlation", "gong"),
):  # fmt: skip
    """as fit; rows of the paper have its t, lambda and c"""


class StudySettings(Section):
    folds: Annotated[Positive, Field(ge=2)] = key(
        5, "parts of each split; one is the smallest target set, and each a draw"
    )
    order: Literal["listed", "shuffled"] = key(
        "shuffled", "which images a part has: shuffled (by seed) | listed (the first ones first)"
    )
    draws: Positive = key(5, "of the smallest target set, over which a number is averaged; at most folds")
    further_draws: Positive = key(2, "of larger target sets")
    encoders: tuple[ImageEncoderEntry, ...] = key((), "further encoders, as Table 1 compares them; keys as above")
    sizes: tuple[Positive, Positive, Positive] = key((1, 3, 5), "target sets of Tables 1, 2 and 4, in folds")
    transfer_sizes: tuple[Positive, Positive, Positive] = key((1, 3, 5), "target sets of Table 5, in folds")
    weak_sizes: tuple[Positive, Positive, Positive, Positive] = key((1, 2, 3, 5), "auxiliary sets of Table 6, in folds")
    terms: tuple[Positive, Positive, Positive] = key(
        (300, 1000, 3000), "dictionary sizes of Table 2; the middle one is used in the other tables"
    )
    weights: NonNegatives = key((0, 0.3, 1), "transfer.weight of our own row: 0 is joint training, 1 the paper's")
    fit: StudyFitSettings = key(StudyFitSettings, "as fit; rows of the paper have its t, lambda and c")


class PhrasesSettings(Section):
    splits: tuple[Described, ...] = key(("test",), "splits whose noun phrases are compared with regions")
    models: tuple[Name, ...] | None = key(None, "models to measure; null: those that learn from phrases")
    names: Place | None = key("names.tsv", "a table under data_root, if there: label <TAB> head nouns or phrases, ...")
    least_overlap: PositiveShare = key(0.5, "IoU of a region with a box that a phrase names, to be right")


class AlignSettings(Section):
    splits: tuple[Described, ...] = key(("test",), "splits to align")
    beta: NonNegative = key(0.1, "gain of neighbouring words in one region, in units of a word's product with it")


class ShortlistSettings(Section):
    nearest: Positive = key(1000, "regions to look up for each word of a caption")
    shortlist: Positive = key(1000, "images (or captions) to score exactly")


class IndexSettings(Section):
    splits: tuple[Split, ...] = key(("train", "dev", "test", "weak", "gallery"), "splits that can be searched")
    exact_limit: Positive = key(200_000, "vectors up to which the index is exact, if that fits memory and latency_ms")
    recall_floor: PositiveShare = key(0.95, "otherwise, least recall@10 against exact search")
    memory: Positive | None = key(None, "most MiB per index; null: any")
    bundles: Annotated[Positive, Field(le=10_000)] = key(
        1, "index shards per model, each of a share of the photos and built by its own job"
    )
    latency_ms: AboveZero | None = key(None, "most milliseconds per query (95th percentile); null: any")
    coverage: Annotated[float, Field(gt=0, lt=1)] = key(
        0.9, "share of captions whose photo is among the likely matches, measured on dev (docs/searching.md)"
    )
    candidates: Literal["auto"] | Annotated[tuple[str, ...], Field(min_length=1)] = key(
        "auto", "indexes to try above exact_limit: auto, or a list: [HNSW32, 'IVF1024,SQ8', ...]"
    )
    shortlist: ShortlistSettings = key(
        ShortlistSettings, "multi-vector models above exact_limit, whose index is always IVF,Flat"
    )


class EvaluateSettings(Section):
    splits: tuple[Described, ...] = key(("dev", "test"), "splits to evaluate")
    protocols: tuple[Protocol, ...] = key(
        ("all-sentences", "first-sentence"), "all captions of a split | one per image"
    )
    bootstrap: Count = key(1000, "resamples of the images for 95 % intervals")
    folds: Positive = key(1, "also average over this many galleries of consecutive images (COCO: 5)")
    generators: tuple[Name, ...] = key(
        (),
        "generators to evaluate by perplexity: mrnn | lbl | mlbl | mnlm | sc-nlm",
    )
    prior_images: Count = key(32, "train images whose mean probability is divided out; 0: plain perplexity")


PaperCollection = Literal["flickr8k", "flickr30k", "coco", "pascal1k", "sbu"]
Paper = Literal["gong", "karpathy", "kiros", "niu", "socher"]


class ReproduceSettings(Section):
    collection: PaperCollection | None = key(
        None,
        "which collection it is: flickr8k | flickr30k | coco | pascal1k | sbu; null: none",
    )
    others: tuple[PaperCollection, ...] = key((), "further collections whose tables are shown next to ours")
    papers: tuple[Paper, ...] = key(
        get_args(Paper), "whose tables are shown; gong's are measured too (rule study), from weak texts"
    )
    trees: bool = key(False, "Socher et al.'s sections 6.6 and 6.7 too, which need parses")
    in_place_of: dict[str, str] = key({}, "{encoder: a paper's}: compare it only with rows of that network")


class ServeSettings(Section):
    top: Positive = key(12, "results, unless a request names a number")
    among: Count = key(
        0,
        "minus and plus: nearest photos to sort by the distance to their mean (Kiros et al. 2014: 4); 0: none",
    )
    max_upload_pixels: Positive = key(50_000_000, "largest uploaded photo, by its header")
    max_connections: Positive = key(1000, "open connections; more are refused with 503")
    max_requests: Positive = key(64, "requests answered or waiting, half of them uploads; more are refused with 503")
    originals: bool | None = key(
        None,
        "serve original files, with all that cameras wrote into them; null: if only this machine can see them",
    )
    columns: tuple[str, ...] | None = key(
        None,
        "own columns of the collection that the page shows and filters by; null: all if only this machine can see them,"
        " otherwise none",
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
    """A generator with settings of its own. Further keys are settings of its generator."""

    model_config = ConfigDict(extra="allow")
    generator: Annotated[str, OneOf(tuple(spec.name for spec in GENERATORS))] = key(..., "a registered generator")
    encoders: Names | None = key(None, "some of `encoders`; null: all")
    seed: Seed | None = key(None, "of this generator; null: `seed`")


GeneratorSettings = NearestSettings | OptimisationSettings | RankedSnippetsSettings


@dataclass(frozen=True)
class ChosenGenerator:
    """The meaning of a generator's name: a registered generator, its encoders, its seed and its settings."""

    spec: GeneratorSpec
    encoders: tuple[str, ...]
    seed: int
    settings: GeneratorSettings

    @property
    def precision(self) -> str:
        """The number type of its heavy products."""
        return self.settings.precision if isinstance(self.settings, OptimisationSettings) else "float32"

    @property
    def snippets(self) -> str | None:
        """The multi-vector model whose alignments it learns from."""
        settings = self.settings
        return settings.snippets if isinstance(settings, RegionRecurrentSettings | RankedSnippetsSettings) else None

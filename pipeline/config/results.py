"""Sections of the configuration about indexes, evaluations, tables of papers, the page, and generated captions."""

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
    """The values that the fits of the stage `study` try.

    The defaults of some keys differ from the defaults in `fit`.
    """


class StudySettings(Section):
    folds: Annotated[Positive, Field(ge=2)] = key(
        5, "Number of parts into which each split is divided. One part is the smallest target set."
    )
    order: Literal["listed", "shuffled"] = key(
        "shuffled", "Assignment of images to parts: shuffled (by `seed`) | listed (in the order of the collection)."
    )
    draws: Positive = key(5, "Number of smallest target sets over which a result is averaged, at most `folds`.")
    further_draws: Positive = key(2, "Number of larger target sets over which a result is averaged.")
    encoders: tuple[ImageEncoderEntry, ...] = key(
        (), "Further image encoders that Table 1 compares. Their keys are the keys of `encoders`."
    )
    sizes: tuple[Positive, Positive, Positive] = key(
        (1, 3, 5), "Sizes of the target sets in Tables 1, 2 and 4, in parts."
    )
    transfer_sizes: tuple[Positive, Positive, Positive] = key(
        (1, 3, 5), "Sizes of the target sets in Table 5, in parts."
    )
    weak_sizes: tuple[Positive, Positive, Positive, Positive] = key(
        (1, 2, 3, 5), "Sizes of the auxiliary sets in Table 6, in parts."
    )
    terms: tuple[Positive, Positive, Positive] = key(
        (300, 1000, 3000), "Sizes of the dictionaries in Table 2. The other tables use the second."
    )
    weights: NonNegatives = key(
        (0, 0.3, 1),
        "Values of transfer.weight for the row that jointspace adds to the tables. 0 is joint "
        "training, and 1 is the paper's value.",
    )
    fit: StudyFitSettings = key(
        StudyFitSettings, "Values to try on dev. Rows of the paper use the paper's t, lambda and c."
    )


class PhrasesSettings(Section):
    splits: tuple[Described, ...] = key(("test",), "Splits whose noun phrases are compared with regions.")
    models: tuple[Name, ...] | None = key(
        None, "Models to evaluate. null evaluates all models that learn from phrases."
    )
    names: Place | None = key(
        "names.tsv",
        "Table of names for the labels of boxes, under data_root, if it exists: label TAB head nouns or phrases.",
    )
    least_overlap: PositiveShare = key(
        0.5, "Smallest overlap (intersection over union) of a correct region with a box that the phrase names."
    )


class AlignSettings(Section):
    splits: tuple[Described, ...] = key(("test",), "Splits whose captions are aligned with regions.")
    beta: NonNegative = key(
        0.1, "Bonus for two neighbouring words with the same region, added to the products of words and regions."
    )


class ShortlistSettings(Section):
    nearest: Positive = key(1000, "Number of regions that are looked up for each word of a caption.")
    shortlist: Positive = key(1000, "Number of images (or captions) that are scored exactly.")


class IndexSettings(Section):
    splits: tuple[Split, ...] = key(("train", "dev", "test", "weak", "gallery"), "Splits that can be searched.")
    exact_limit: Positive = key(
        200_000, "Largest number of vectors for an exact index, if it fits `memory` and `latency_ms`."
    )
    recall_floor: PositiveShare = key(
        0.95, "Smallest recall@10 of an index that is not exact: the share of the 10 exact neighbours that it finds."
    )
    memory: Positive | None = key(None, "Largest size of an index in MiB. null sets no limit.")
    bundles: Annotated[Positive, Field(le=10_000)] = key(
        1, "Number of index shards per model. Each has a share of the photos and is built by its own job."
    )
    latency_ms: AboveZero | None = key(
        None, "Largest number of milliseconds per query (95th percentile). null sets no limit."
    )
    coverage: Annotated[float, Field(gt=0, lt=1)] = key(
        0.9,
        "Target share of captions whose photo ranks above the line of likely matches, calibrated on "
        "dev (docs/searching.md).",
    )
    candidates: Literal["auto"] | Annotated[tuple[str, ...], Field(min_length=1)] = key(
        "auto",
        "Types of indexes to try if an exact index is not possible: auto, or a list such as [HNSW32, 'IVF1024,SQ8'].",
    )
    shortlist: ShortlistSettings = key(
        ShortlistSettings,
        "Shortlist of multi-vector models above exact_limit. Their index is always of the type IVF,Flat.",
    )


class EvaluateSettings(Section):
    splits: tuple[Described, ...] = key(("dev", "test"), "Splits on which models are evaluated.")
    protocols: tuple[Protocol, ...] = key(
        ("all-sentences", "first-sentence"),
        "Captions that are used: all-sentences (all captions of a split) | first-sentence (the "
        "first caption of each image).",
    )
    bootstrap: Count = key(1000, "Number of resamples of the images for 95% confidence intervals.")
    folds: Positive = key(
        1,
        "Number of sets of consecutive images into which a split is also divided (5 for COCO). The recalls of the sets "
        "are averaged. 1 turns this off.",
    )
    generators: tuple[Name, ...] = key(
        (),
        "Caption generators that are evaluated by perplexity: mrnn | lbl | mlbl | mnlm | sc-nlm.",
    )
    prior_images: Count = key(
        32,
        "generators: number of train images. The probability of a caption is divided by its mean probability for these "
        "images. 0: plain perplexity.",
    )


PaperCollection = Literal["flickr8k", "flickr30k", "coco", "pascal1k", "sbu"]
Paper = Literal["gong", "karpathy", "kiros", "niu", "socher"]


class ReproduceSettings(Section):
    collection: PaperCollection | None = key(
        None,
        "The collection of the run: flickr8k | flickr30k | coco | pascal1k | sbu. null: none of these.",
    )
    others: tuple[PaperCollection, ...] = key((), "Further collections whose published tables are shown.")
    papers: tuple[Paper, ...] = key(
        get_args(Paper),
        "Papers whose tables are shown. The systems of gong are also trained and measured (stage study), which needs"
        " weak texts.",
    )
    arithmetic: dict[Name, tuple[tuple[str, str, str], ...]] = key(
        {},
        "Searches that the report shows, as lists of [photo, minus, plus] for each model. The report shows the photo "
        "that is found for the text `photo`, and the photos that are nearest to its vector minus the vector of "
        "`minus` plus the vector of `plus`.",
    )
    trees: bool = key(False, "Whether to compute sections 6.6 and 6.7 of Socher et al. too, which need parses.")
    reproduced: dict[str, str] = key(
        {},
        "Models with the settings of a paper, without -seedK, and the names of their systems in"
        " pipeline/papers/published.yaml, as {model: system}. All other models are shown as improved.",
    )


class ServeSettings(Section):
    top: Positive = key(12, "Number of results, unless a request asks for another number.")
    among: Count = key(
        0,
        "Number of nearest results of a photo with plus and minus words that are sorted again by the distance "
        "to their mean (4 in Kiros et al. 2014). 0 turns this off. `jointspace search` has "
        "its own option, --rerank.",
    )
    max_upload_pixels: Positive = key(50_000_000, "Largest number of pixels of an uploaded photo.")
    max_connections: Positive = key(1000, "Largest number of open connections. Further connections get the answer 503.")
    max_requests: Positive = key(
        64,
        "Largest number of requests that are being answered or waiting, of which half may be "
        "uploads. Further requests get the answer 503.",
    )
    originals: bool | None = key(
        None,
        "Whether to serve original files, including their EXIF metadata. null: only if no other machine can reach the "
        "server.",
    )
    columns: tuple[str, ...] | None = key(
        None,
        "The collection's own columns that the page shows and filters by. null: all columns if no other machine can "
        "reach the server, and otherwise none.",
    )


class NearestSettings(Section):
    """A generator that returns the caption of the nearest training image, or the nearest training caption.

    In the joint space, the distance is always the cosine.
    """

    by: Literal["features", "joint-image", "joint-sentence"] = key(
        "features",
        "Nearest neighbour: features (training image by its features) | joint-image (training image "
        "in the joint space) | joint-sentence (training caption in the joint space).",
    )
    distance: Literal["cosine", "euclidean"] = key(
        "cosine",
        "Distance of features, for by: features: cosine (of the image view) | euclidean (of "
        "unchanged features, as in Karpathy and Fei-Fei 2015 with a single encoder of layer fc7).",
    )

    @property
    def in_space(self) -> bool:
        """Whether the generator uses the joint space of a model."""
        return self.by != "features"


class OptimisationSettings(Section):
    in_space: ClassVar[bool] = False
    optimiser: Literal["rmsprop", "adam", "sgd"] = key("rmsprop", "Optimiser: rmsprop | adam | sgd.")
    learning_rate: AboveZero = key(0.002, "Learning rate at the start.")
    decay: PositiveShare = key(0.75, "Factor on the learning rate per epoch. The rate decreases in every step.")
    weight_decay: NonNegative = key(0, "Weight decay per step, as a multiple of the learning rate.")
    averaging: BelowOne = key(0.99, "Decay of the running average of the parameters per step.")
    clip: AboveZero = key(5, "Largest absolute value of an element of the gradient.")
    dropout: BelowOne = key(
        0.4, "Dropout. mrnn: on the image, words and hidden state. Other generators: on word vectors and factors."
    )
    batch_size: Positive = key(128, "Number of captions per batch.")
    epochs: Positive = key(8, "Largest number of epochs.")
    patience: Positive = key(2, "Number of epochs without a lower perplexity on dev after which training stops.")
    checkpoint_seconds: NonNegative = key(
        60, "Number of seconds between two checkpoints. A killed job repeats about this many seconds."
    )
    precision: Precision = key(
        "auto", "Number type of matrix products: auto (bfloat16 if it is fast) | float32 | bfloat16."
    )


class RecurrentSettings(OptimisationSettings):
    cell: Literal["rnn", "relu", "gru", "lstm"] = key(
        "lstm",
        "Recurrent cell: relu (Karpathy and Fei-Fei 2015, equation 14, with their f) | rnn (the "
        "same with f = tanh) | gru | lstm.",
    )
    dimensions: Positive = key(256, "Number of units of the hidden state.")
    word_dim: Positive = key(256, "Number of dimensions of the word vectors.")


class RegionRecurrentSettings(RecurrentSettings):
    snippets: str | None = key(None, "Multi-vector model among `models` from whose alignments the generator learns.")
    whole: bool = key(
        False, "Whether the features of the whole image are added (Karpathy and Fei-Fei 2015, supplement 6.4)."
    )


class RankedSnippetsSettings(Section):
    """A generator that returns the best training snippet for each region (Karpathy and Fei-Fei 2015, Table 3)."""

    in_space: ClassVar[bool] = False
    snippets: str | None = key(None, "Multi-vector model among `models` whose snippets are ranked, such as dvsa.")


class LogBilinearSettings(OptimisationSettings, dropout=0.2, epochs=6):
    """A generator that is a log-bilinear language model of Kiros et al. 2014."""

    in_space: ClassVar[bool] = True
    context: Positive = key(5, "Number of words from which the next word is predicted (n - 1).")
    dimensions: Positive = key(200, "Number of dimensions of the word vectors (K). The paper has 300.")
    factors: Positive = key(200, "mnlm, sc-nlm: number of factors (F). The paper has 100.")
    ahead: Count = key(2, "sc-nlm: number of parts of speech after the part of speech of the next word (k).")
    gate_bias: bool = key(True, "mnlm, sc-nlm: whether gates have a bias. The paper's gates do not.")


class ExtraTextSettings(Section):
    file: Place | None = key(None, "File of sentences without images, one per line, plain or compressed (.gz).")
    column: Count = key(0, "Number of the tab-separated column with the sentence, from 0.")
    treebank: Place | None = key(
        None, "CoNLL-U file on which the tagger of sc-nlm is trained. With null, sc-nlm cannot be trained."
    )


class DescribeSettings(Section):
    splits: tuple[Described, ...] = key(("test",), "Splits for whose images captions are generated and evaluated.")
    boxes: bool = key(False, "Whether to generate captions for labelled boxes too (docs/trees.md).")
    region_texts: Place | None = key(
        None, "File under data_root with texts that people wrote for boxes (docs/trees.md)."
    )
    space: str = key(
        "ncca",
        "Model whose joint space lbl, mlbl, mnlm and sc-nlm use, and nearest with by: joint-image or joint-sentence.",
    )
    top: Positive = key(5, "Number of generated captions per image, the best first. The first is evaluated.")
    beam: Positive = key(7, "mrnn: number of hypotheses in the beam search. 1 is greedy.")
    length_power: NonNegative = key(0.7, "mrnn: exponent of the length by which log probabilities are divided.")
    temperature: AboveZero | None = key(None, "mrnn: temperature at which captions are sampled. null uses beam search.")
    candidates: Positive = key(
        300, "lbl, mlbl, mnlm, sc-nlm: number of candidates per image. Kiros et al. 2014 have 1000."
    )
    meteor: bool = key(True, "Whether to compute METEOR, if Java is installed. All scores need jointspace[metrics].")


class GeneratorVariant(Seeds):
    """A generator with settings of its own. Keys that are not listed here are settings of its registered generator."""

    model_config = ConfigDict(extra="allow")
    generator: Annotated[str, OneOf(tuple(spec.name for spec in GENERATORS))] = key(
        ..., "Name of a registered generator."
    )
    encoders: Names | None = key(None, "Image encoders of the generator. null uses all of `encoders`.")
    seed: Seed | None = key(None, "Seed of this generator. null uses `seed`.")


GeneratorSettings = NearestSettings | OptimisationSettings | RankedSnippetsSettings


@dataclass(frozen=True)
class ChosenGenerator:
    """A generator of the configuration: its registered generator, its encoders, its seed and all of its settings."""

    spec: GeneratorSpec
    encoders: tuple[str, ...]
    seed: int
    settings: GeneratorSettings

    @property
    def precision(self) -> str:
        """The number type of the generator's matrix products: `auto`, `float32` or `bfloat16`."""
        return self.settings.precision if isinstance(self.settings, OptimisationSettings) else "float32"

    @property
    def snippets(self) -> str | None:
        """The multi-vector model whose alignments the generator uses, or None if it uses none."""
        settings = self.settings
        return settings.snippets if isinstance(settings, RegionRecurrentSettings | RankedSnippetsSettings) else None

"""Sections about what is made of models: indices, measures, pages, papers."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from pipeline.config.encoders import ImageEncoderEntry
from pipeline.config.models import FitSettings
from pipeline.config.section import (
    AboveZero,
    Count,
    Described,
    Name,
    NonNegative,
    NonNegatives,
    Place,
    Positive,
    PositiveShare,
    Protocol,
    Section,
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
        1, "bundles of a model's index, each of a share of the shards and made by its own job"
    )
    latency_ms: AboveZero | None = key(None, "most milliseconds per query (95th percentile); null: any")
    coverage: Annotated[float, Field(gt=0, lt=1)] = key(
        0.9, "share of captions whose photo is among the likely answers (docs/searching.md)"
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
    among: Count = key(0, "arithmetic: nearest to re-sort by distance to their mean (Kiros et al. 2014: 4); 0: none")
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

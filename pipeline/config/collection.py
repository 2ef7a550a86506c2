"""Sections about the collection and its texts."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pipeline.config.section import AboveZero, Count, ImportPath, Place, Positive, Section, Seed, Share, Split, key
from pipeline.printable import UNSAFE

LONGEST_NAME = 64
"""Maximum number of characters of a column's name."""


def _name_column(value: str) -> str:
    if not value.strip() or UNSAFE.search(value):
        raise ValueError("a column's name is printable, and not empty")
    return value


def _join_choices(value: object) -> object:
    """Write a list of columns, of which the first that is not empty counts, as the readers of tables do."""
    if not isinstance(value, list | tuple):
        return value
    names = [name for name in value if isinstance(name, str)]
    return " | ".join(names) if names and len(names) == len(value) else value


OwnName = Annotated[str, Field(max_length=LONGEST_NAME), AfterValidator(_name_column)]


Format = Literal[
    "folder", "flickr-token", "karpathy", "coco", "pascal1k", "table", "text-files", "webdataset", "parquet", "vectors",
]  # fmt: skip


class DemoSettings(Section):
    generate: bool = key(True, "draw the demo collection into data_root first; false for your own data")
    train: Positive = key(1500, "images with five captions each, to train on")
    dev: Positive = key(250, "likewise, to choose parameters on")
    test: Positive = key(250, "likewise, to report on")
    weak: Count = key(6000, "images with title, tags and description, each partial or missing")
    seed: Seed = key(0, "another seed draws another collection")


class CollectionSettings(Section):
    format: Format | ImportPath = key(
        "folder",
        "folder | flickr-token | karpathy | coco | pascal1k | table | text-files | webdataset | parquet | vectors"
        " (made elsewhere; no photos) | module:function of yours",
    )
    files: dict[str, Place] = key({}, "the format's files, if they do not have their usual names")
    columns: dict[str, Annotated[str, BeforeValidator(_join_choices)]] = key(
        {}, "formats table and parquet: which column holds file, sentence, split, title, tags, description"
    )
    own_columns: tuple[str, ...] | dict[OwnName, str] | None = key(
        None, "further columns to keep: their names, or {our name: yours}; null: all"
    )
    default_split: Split | Literal["divided"] = key(
        "divided",
        "split of images that no list names: train | dev | test | weak | gallery | divided (docs/own-data.md)",
    )
    draw: tuple[Literal["dev", "test"], ...] = key(
        (), "take a tenth of train for these splits, if the collection does not name them: dev | test"
    )
    max_sentence_chars: Positive = key(2000, "longer captions, titles and descriptions are rejected")
    max_image_pixels: Positive = key(64_000_000, "larger images are rejected before they are decoded")
    decode_seconds: AboveZero = key(10, "CPU seconds to decode an image; slower images are rejected")
    follow_links: bool = key(False, "read links that lead out of data_root; otherwise they are rejected")
    exclude: tuple[str, ...] = key(
        (),
        "patterns of files and folders to leave out: masks, '*_small.jpg', 'raw/2019/*' (docs/own-data.md)",
    )
    takedown: Place | None = key(
        None, "list of photos, one name per line, or of captions (PHOTO TAB CAPTION), of which the run keeps no trace"
    )
    memory_gb: AboveZero = key(1, "gigabytes of tables that `ingest` keeps in memory; the rest is on disk")
    reject_limit: Share = key(0.05, "exit code 3 if a larger share, and over one, of images or captions is rejected")

    @property
    def kept_columns(self) -> dict[str, str] | None:
        """The user's own columns to keep: name in the collection -> our name. None keeps all."""
        own = self.own_columns
        if isinstance(own, dict):
            return {theirs: ours for ours, theirs in own.items()}
        return None if own is None else {name: name for name in own}

    @model_validator(mode="after")
    def _one_name_a_column(self) -> "CollectionSettings":
        if len(self.kept_columns or ()) < len(self.own_columns or ()):
            raise ValueError("own_columns names a column twice")
        return self


class SimulationSettings(Section):
    """How weak simulated text is. A title is a few words of a caption, and a description is a whole caption."""

    tag_words: Positive = key(..., "words per tag list")
    true_words: Count = key(..., "of these, from the image's own captions; the rest from other images'")
    wrong: Share = key(..., "share of titles and descriptions taken from another image")
    missing: Share = key(..., "share of each field that is missing")


class DocumentsSettings(Section):
    fields: Annotated[tuple[Literal["title", "tags", "description"], ...], Field(min_length=1)] = key(
        ("title", "tags", "description"), "fields to join"
    )
    simulate: SimulationSettings | None = key(None, "null: the collection's own texts; otherwise made from captions")


class AuxiliarySettings(Section):
    splits: Annotated[tuple[Split, ...], Field(min_length=1)] = key(("weak",), "splits whose images have weak texts")

"""Sections of the configuration about the collection and its texts."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pipeline.config.section import AboveZero, Count, ImportPath, Place, Positive, Section, Seed, Share, Split, key
from pipeline.printable import UNSAFE

MAX_COLUMN_NAME = 64
"""Largest number of characters in the name of one of the user's own columns. A longer name is an error."""


def _name_column(value: str) -> str:
    if not value.strip() or UNSAFE.search(value):
        raise ValueError(
            f"the name of a column, {value!r}, must not be empty or have unprintable characters. Correct the name"
        )
    return value


def _join_choices(value: object) -> object:
    """Convert a list of the columns A and B to the text `A | B`, which the readers of tables expect.

    In each row, the readers use the first of these columns that has a value. A value that is not a list of texts is
    returned unchanged.
    """
    if not isinstance(value, list | tuple):
        return value
    names = [name for name in value if isinstance(name, str)]
    return " | ".join(names) if names and len(names) == len(value) else value


OwnName = Annotated[str, Field(max_length=MAX_COLUMN_NAME), AfterValidator(_name_column)]


Format = Literal[
    "folder", "flickr-token", "karpathy", "coco", "pascal1k", "table", "text-files", "webdataset", "parquet", "vectors",
]  # fmt: skip


class DemoSettings(Section):
    generate: bool = key(
        True, "Whether to draw the synthetic demo collection into data_root first. Set it to false for your own data."
    )
    train: Positive = key(1500, "Number of images for training, with five captions each.")
    dev: Positive = key(250, "Number of images for choosing parameters, with five captions each.")
    test: Positive = key(250, "Number of images for reporting results, with five captions each.")
    weak: Count = key(
        6000, "Number of images with a title, tags and a description, each of which may be partial or missing."
    )
    seed: Seed = key(0, "Seed of the collection. Another seed draws other images and captions.")


class CollectionSettings(Section):
    format: Format | ImportPath = key(
        "folder",
        "Format of the collection: folder | flickr-token | karpathy | coco | pascal1k | table | "
        "text-files | webdataset | parquet | vectors (precomputed vectors without photos) | "
        "module:function (your own reader).",
    )
    files: dict[str, Place] = key(
        {}, "Names of the files of the format, if they are not the usual names (docs/formats.md)."
    )
    columns: dict[str, Annotated[str, BeforeValidator(_join_choices)]] = key(
        {},
        "Formats table and parquet: the columns of the collection, as {file, sentence, split, title, tags or "
        "description: name of the column}.",
    )
    own_columns: tuple[str, ...] | dict[OwnName, str] | None = key(
        None,
        "Further columns to keep: a list of their names, or {new name: name in the collection}. "
        "null keeps all columns.",
    )
    default_split: Split | Literal["divided"] = key(
        "divided",
        "Split of images that no list names: train | dev | test | weak | gallery | divided "
        "(jointspace assigns images with captions to train, dev and test, and other images to weak or gallery).",
    )
    draw: tuple[Literal["dev", "test"], ...] = key(
        (),
        "Splits (dev | test) that are drawn from train and from images without a split, if the collection does not "
        "name them. Each gets a tenth of these images, at most 1,000.",
    )
    max_sentence_chars: Positive = key(
        2000, "Largest number of characters of a caption, title or description. Longer texts are rejected."
    )
    max_image_pixels: Positive = key(
        64_000_000, "Largest number of pixels of an image. Larger images are rejected before they are decoded."
    )
    decode_seconds: AboveZero = key(
        10, "Largest number of CPU seconds for decoding an image. Images that take longer are rejected."
    )
    follow_links: bool = key(
        False,
        "Whether to follow all links to files. Otherwise links that lead out of data_root, or out of a folder directly"
        " under data_root, are rejected.",
    )
    exclude: tuple[str, ...] = key(
        (),
        "Patterns of files and folders to ignore, such as masks, '*_small.jpg' or 'raw/2019/*'.",
    )
    takedown: Place | None = key(
        None,
        "File with photos to remove from the run without a trace, one name per line. A line PHOTO "
        "TAB CAPTION removes one caption. The path is relative to the current folder.",
    )
    memory_gb: AboveZero = key(
        1, "Gigabytes of tables that `ingest` keeps in memory. The rest of the tables is on disk."
    )
    reject_limit: Share = key(
        0.05,
        "Largest share of rejected images, and of rejected captions. If the share is larger and more than one is "
        "rejected, the run ends with exit code 3.",
    )

    @property
    def kept_columns(self) -> dict[str, str] | None:
        """The user's own columns to keep, as name in the collection -> name under which the column is kept.

        None means that all columns of the user are kept under their own names.
        """
        own = self.own_columns
        if isinstance(own, dict):
            return {name: new_name for new_name, name in own.items()}
        return None if own is None else {name: name for name in own}

    @model_validator(mode="after")
    def _one_name_per_column(self) -> "CollectionSettings":
        if len(self.kept_columns or ()) < len(self.own_columns or ()):
            raise ValueError("own_columns names a column twice. Name each column once")
        return self


class SimulationSettings(Section):
    """The quality of simulated weak text. A title is a few words of a caption, and a description is a whole caption."""

    tag_words: Positive = key(..., "Number of words in a list of tags.")
    true_words: Count = key(
        ...,
        "Number of these words that are from the captions of the image. The others are from captions of other images.",
    )
    wrong: Share = key(..., "Share of titles and descriptions that are taken from another image.")
    missing: Share = key(..., "Share of titles, of tags and of descriptions that are missing.")


class DocumentsSettings(Section):
    fields: Annotated[tuple[Literal["title", "tags", "description"], ...], Field(min_length=1)] = key(
        ("title", "tags", "description"), "Fields that are joined to one text."
    )
    simulate: SimulationSettings | None = key(
        None, "Settings for weak texts that are simulated from captions. null uses the weak texts of the collection."
    )


class AuxiliarySettings(Section):
    splits: Annotated[tuple[Split, ...], Field(min_length=1)] = key(("weak",), "Splits whose images have weak texts.")

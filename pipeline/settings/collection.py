"""Sections about the collection and its texts."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from pipeline.printable import UNSAFE
from pipeline.settings.section import AboveZero, Count, Positive, Section, Seed, Share, Split
from pipeline.settings.text_encoders import TextKindSettings

LONGEST_NAME = 64
"""Characters of a column's name."""


def _name_column(value: str) -> str:
    if not value.strip() or UNSAFE.search(value):
        raise ValueError("a column's name is printable, and not empty")
    return value


OwnName = Annotated[str, Field(max_length=LONGEST_NAME), AfterValidator(_name_column)]


class DemoSettings(Section):
    generate: bool
    train: Positive
    dev: Positive
    test: Positive
    weak: Count
    seed: Seed


class CollectionSettings(Section):
    format: Literal[
        "folder", "flickr-token", "karpathy", "coco", "pascal1k", "table", "text-files", "webdataset", "parquet"
    ]
    files: dict[str, str]
    columns: dict[str, str]
    own_columns: tuple[str, ...] | dict[OwnName, str] | None
    default_split: Split | Literal["divided"]
    max_sentence_chars: Positive
    max_image_pixels: Positive
    min_image_side: Positive
    max_aspect_ratio: Positive
    decode_seconds: AboveZero
    follow_links: bool
    exclude: tuple[str, ...]
    takedown: str | None
    reject_limit: Share

    @property
    def kept_columns(self) -> dict[str, str] | None:
        """The user's own columns that are kept, by their names in the collection, with ours; None: all."""
        own = self.own_columns
        if own is None:
            return None
        return {theirs: ours for ours, theirs in (own.items() if isinstance(own, dict) else zip(own, own, strict=True))}

    @model_validator(mode="after")
    def _one_name_a_column(self) -> "CollectionSettings":
        if len(self.kept_columns or ()) < len(self.own_columns or ()):
            raise ValueError("own_columns names a column twice")
        return self


class TextSettings(TextKindSettings):
    lowercase: bool
    tokenizer: Literal["treebank", "words"]
    lemmatise: bool
    stop_words: bool
    max_ngram: Annotated[Positive, Field(le=3)]
    size: Positive
    min_count: Positive
    idf: bool
    normalise: bool
    vocabulary: str | None

    @property
    def learns(self) -> bool:
        return self.vocabulary is None

    def outside(self, weights_root: str) -> Path | None:
        return Path(self.vocabulary) if self.vocabulary else None


class SimulationSettings(Section):
    """How weak simulated text is.

    Of the `tag_words` words of a tag list `true_words` are from the image's own sentences, the others from sentences of
    other images; a title (a few words of a sentence) and a description (a whole one) are of another image with
    probability `wrong`; each of the three fields is missing with probability `missing`.
    """

    tag_words: Positive
    true_words: Count
    wrong: Share
    missing: Share


class DocumentsSettings(Section):
    fields: Annotated[tuple[Literal["title", "tags", "description"], ...], Field(min_length=1)]
    simulate: SimulationSettings | None


class AuxiliarySettings(Section):
    splits: Annotated[tuple[Split, ...], Field(min_length=1)]


class TokenVocabularySettings(Section):
    lowercase: bool
    tokenizer: Literal["treebank", "words"]
    size: Positive
    min_count: Positive

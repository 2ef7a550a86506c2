"""Sections about the collection and its texts."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pipeline.settings.section import AboveZero, Count, Positive, Section, Seed, Share, Split
from pipeline.settings.text_encoders import TextKindSettings


class DemoSettings(Section):
    generate: bool
    train: Positive
    dev: Positive
    test: Positive
    weak: Count
    seed: Seed


class CollectionSettings(Section):
    format: Literal["folder", "flickr-token", "karpathy", "coco", "table", "text-files", "webdataset"]
    files: dict[str, str]
    columns: dict[str, str]
    own_columns: tuple[str, ...] | None
    default_split: Split | Literal["divided"]
    max_sentence_chars: Positive
    max_image_pixels: Positive
    min_image_side: Positive
    max_aspect_ratio: Positive
    decode_seconds: AboveZero
    follow_links: bool
    takedown: str | None
    reject_limit: Share


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

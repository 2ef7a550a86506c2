"""Sections about the collection and its texts."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.section import Positive, Section, Share, Split


class Demo(Section):
    generate: bool
    train: Positive
    dev: Positive
    test: Positive
    weak: Annotated[int, Field(ge=0)]
    seed: Annotated[int, Field(ge=0)]


class Collection(Section):
    format: Literal["folder", "flickr-token", "karpathy", "coco", "table", "text-files", "webdataset"]
    files: dict[str, str]
    columns: dict[str, str]
    default_split: Split | Literal["divided"]
    max_sentence_chars: Positive
    max_image_pixels: Positive
    min_image_side: Positive
    max_aspect_ratio: Positive
    decode_seconds: Annotated[float, Field(gt=0)]
    follow_links: bool
    takedown: str | None
    reject_limit: Annotated[float, Field(ge=0, le=1)]


class Text(Section):
    lowercase: bool
    tokenizer: Literal["treebank", "words"]
    lemmatise: bool
    stop_words: bool
    max_ngram: Annotated[int, Field(ge=1, le=3)]
    size: Positive
    min_count: Positive
    idf: bool
    normalise: bool
    vocabulary: str | None


class Simulation(Section):
    tag_words: Positive
    true_words: Annotated[int, Field(ge=0)]
    wrong: Share
    missing: Share


class Documents(Section):
    fields: Annotated[tuple[Literal["title", "tags", "description"], ...], Field(min_length=1)]
    simulate: Simulation | None


class Auxiliary(Section):
    splits: Annotated[tuple[Split, ...], Field(min_length=1)]


class TokenVocabulary(Section):
    lowercase: bool
    tokenizer: Literal["treebank", "words"]
    size: Positive
    min_count: Positive

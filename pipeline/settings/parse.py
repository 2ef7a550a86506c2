"""Sections about sentence trees."""

from typing import Literal

from pydantic import model_validator

from pipeline.settings.section import Count, Positive, Section


class TreebankSettings(Section):
    train: str | None
    dev: str | None
    test: str | None


class ParserSettings(Section):
    epochs: Positive


class ParseSettings(Section):
    engine: Literal["files", "spacy"]
    conllu: str | None
    brackets: str | None
    pipeline: str | None
    max_words: Positive
    batch_sentences: Positive
    workers: Count
    treebank: TreebankSettings
    training: ParserSettings

    @model_validator(mode="after")
    def _files_are_given(self) -> "ParseSettings":
        if self.engine == "files" and self.conllu is None and self.brackets is None:
            raise ValueError("parse.engine is files: name one in parse.conllu or parse.brackets, or set spacy")
        return self

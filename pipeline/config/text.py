"""Sections about sentences: words, trees, and vectors of words. The encoders are in pipeline.config.encoders."""

from typing import ClassVar, Literal

from pydantic import model_validator

from pipeline.config.section import Count, Place, Positive, Section, file_goes_with, key


class TokenVocabularySettings(Section):
    remedy: ClassVar[str] = "raise tokens.size or lower tokens.min_count"

    size: Positive = key(
        20_000, "number of words: the most common of the training captions; all others are one unknown word"
    )
    min_count: Positive = key(2, "training captions that a word must occur in")


class WordVectorsSettings(Section):
    source: Literal["random", "corpus", "file"] = key(
        "random", "random | corpus (word2vec on the training captions and language_text) | file"
    )
    file: Place | None = key(None, "source file: GloVe or word2vec, under weights_root")
    format: Literal["text", "binary"] = key("text", "of that file: text | binary (word2vec)")
    dim: Positive = key(300, "dimensions of random or learned vectors")
    predicts: Literal["context", "word"] = key(
        "context", "source corpus: context (skip-gram) | word (CBOW; Kiros et al. 2014)"
    )
    train: bool = key(True, "train them further with the model")

    _file = file_goes_with("source")


class TreebankSettings(Section):
    train: Place | None = key(None, "for training")
    dev: Place | None = key(None, "decides when to stop")
    test: Place | None = key(None, "for the report")


class ParserSettings(Section):
    epochs: Positive = key(14, "most epochs")


class ParseSettings(Section):
    engine: Literal["files", "spacy"] = key("files", "files (of another parser, or the demo's) | spacy")
    conllu: Place | None = key("trees.conllu", "files: CoNLL-U under data_root; null: dependencies from brackets")
    brackets: Place | None = key(
        "trees.brackets", "files: phrase trees under data_root; null: phrases from dependencies"
    )
    pipeline: str | None = key(None, "spacy: an installed package, or folder under weights_root; null: train-parser's")
    workers: Count = key(2, "spacy: processes that parse; 0 for none")
    treebank: TreebankSettings = key(TreebankSettings, "CoNLL-U of train-parser, under weights_root, plain or .gz")
    training: ParserSettings = key(ParserSettings)

    @model_validator(mode="after")
    def _files_are_given(self) -> "ParseSettings":
        if self.engine == "files" and self.conllu is None and self.brackets is None:
            raise ValueError("parse.engine is files: name one in parse.conllu or parse.brackets, or set spacy")
        return self


RESERVED = ("documents", "encoders", "labels", "parses", "simulated", "tokens", "trees", "word-vectors")
"""Names that something else has in a run's folder `text`, with or without an ending."""

"""Sections of the configuration about words, trees and word vectors. Encoders are in pipeline.config.encoders."""

from typing import ClassVar, Literal

from pydantic import model_validator

from pipeline.config.section import Count, Place, Positive, Section, file_goes_with, key


class TokenVocabularySettings(Section):
    remedy: ClassVar[str] = "Raise tokens.size or lower tokens.min_count"

    size: Positive = key(
        20_000,
        "Number of words in the vocabulary: the most common words of the training captions. All "
        "other words count as one unknown word.",
    )
    min_count: Positive = key(2, "Smallest number of training captions that have a word of the vocabulary.")


class WordVectorsSettings(Section):
    source: Literal["random", "corpus", "file"] = key(
        "random",
        "Origin of the word vectors: random | corpus (word2vec on the training captions and language_text) | file.",
    )
    file: Place | None = key(None, "File of GloVe or word2vec vectors under weights_root, for source: file.")
    format: Literal["text", "binary"] = key("text", "Format of the file: text | binary (word2vec).")
    dim: Positive = key(300, "Number of dimensions of random or trained word vectors.")
    predicts: Literal["context", "word"] = key(
        "context", "Method of word2vec, for source: corpus: context (skip-gram) | word (CBOW, as in Kiros et al. 2014)."
    )
    train: bool = key(True, "Whether the training of a model changes the word vectors.")

    _file = file_goes_with("source")


class TreebankSettings(Section):
    train: Place | None = key(None, "File of sentences for training.")
    dev: Place | None = key(None, "File of sentences for choosing the best epoch.")
    test: Place | None = key(None, "File of sentences for reporting the accuracy.")


class ParserSettings(Section):
    epochs: Positive = key(14, "Largest number of epochs.")


class ParseSettings(Section):
    engine: Literal["files", "spacy"] = key(
        "files", "Parser: files (the output of another parser, or the trees of the demo) | spacy."
    )
    conllu: Place | None = key(
        "trees.conllu",
        "CoNLL-U file of dependency trees under data_root, for engine: files. With null, "
        "dependencies are derived from phrase trees.",
    )
    brackets: Place | None = key(
        "trees.brackets",
        "File of phrase trees in Penn brackets under data_root, for engine: files. With null, phrase trees are derived "
        "from dependencies.",
    )
    pipeline: str | None = key(
        None,
        "spaCy pipeline: an installed package, or a folder under weights_root. null uses the "
        "pipeline that `train-parser` trains.",
    )
    workers: Count = key(2, "Number of processes that parse with spaCy. With 0, the job itself parses.")
    treebank: TreebankSettings = key(
        TreebankSettings,
        "CoNLL-U files on which `train-parser` trains a parser, under weights_root, plain or compressed (.gz).",
    )
    training: ParserSettings = key(ParserSettings, "Training of a spaCy pipeline by `train-parser`.")

    @model_validator(mode="after")
    def _files_are_given(self) -> "ParseSettings":
        if self.engine == "files" and self.conllu is None and self.brackets is None:
            raise ValueError(
                "parse.engine is files, but no file is named. Set parse.conllu or parse.brackets, or set parse.engine"
                " to spacy"
            )
        return self


RESERVED = ("documents", "encoders", "labels", "parses", "simulated", "tokens", "trees", "word-vectors")
"""Names that a text encoder must not have, because other artefacts in the folder `text` of a run have these names."""

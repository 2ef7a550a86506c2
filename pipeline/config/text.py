"""Sections about sentences: vectors, tokens, trees; the entries of text encoders."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from pipeline.config.section import (
    Count,
    ImportPath,
    Name,
    NonNegative,
    Place,
    Positive,
    Section,
    file_goes_with,
    key,
    with_kinds,
)
from pipeline.config.text_encoders import TEXT_ENCODERS, TextEncoderSpec, text_encoder_spec


class TextKindSettings(Section):
    """What a kind of text encoder is made from, beside its keys."""

    remedy: ClassVar[str] = ""
    """What may help where many words of dev are unknown to it."""
    needs: ClassVar[str] = ""
    """The key that an entry of the kind has to have."""
    corpus: ClassVar[bool] = False
    """Whether it is made from the run's own vectors of words."""
    maker: ClassVar[str | None] = None
    """The text encoder that made its vectors, where these were made elsewhere."""

    @property
    def learns(self) -> bool:
        """Whether from the training sentences."""
        return False

    def files(self, weights_root: str) -> dict[str, Path]:
        """The files that a person brought for it, by their names as inputs."""
        file = getattr(self, "file", None)
        return {"file": Path(weights_root, file)} if file else {}

    def folder(self, weights_root: str) -> Path | None:
        """The folder of a model that a person brought for it."""
        return None


class WordVectorSource(TextKindSettings):
    """Where the vectors of words come from, of which a text's vector is made."""

    remedy: ClassVar[str] = "use vectors of words in the language of the sentences, or source: corpus"

    source: Literal["corpus", "file"] = key("corpus", "corpus (what train-word-vectors learned) | file")
    file: Place | None = key(None, "source file: GloVe or word2vec, under weights_root")
    format: Literal["text", "binary"] = key("text", "of that file: text | binary (word2vec)")
    words: Positive = key(50_000, "source file: words to keep, besides those of the training captions")

    @property
    def learns(self) -> bool:
        return True

    @property
    def corpus(self) -> bool:
        return self.source == "corpus"

    _file = file_goes_with("source")


class AveragedSettings(WordVectorSource):
    """The mean vector of a text's words."""

    idf: bool = key(True, "weight words by inverse document frequency")


class FisherSettings(WordVectorSource):
    """The Fisher vector of a text's words; needs jointspace[fisher]."""

    components: Annotated[Positive, Field(ge=2)] = key(
        16, "components of the Gaussian mixture; a vector has this times (2 x word dimensions + 1)"
    )
    principal: Positive | None = key(50, "principal components of word vectors; null: the vectors themselves")
    sample: Positive = key(200_000, "words of the training captions to fit the mixture to")


class LibrarySettings(TextKindSettings):
    """A model of another library: its name on the hub, or a folder."""

    needs: ClassVar[str] = "architecture"

    architecture: str | None = key(None, "a model on Hugging Face's hub, or a folder under weights_root")

    def folder(self, weights_root: str) -> Path | None:
        place = Path(weights_root) / (self.architecture or "")
        return place if self.architecture and place.is_dir() else None


class OpenClipTextSettings(LibrarySettings):
    """The text side of an OpenCLIP model: its name, hf-hub:NAME, or a folder."""

    weights: str | None = key(None, "OpenCLIP's name for its pretrained weights")


class ImportedSettings(TextKindSettings):
    """Vectors of the run's captions, made elsewhere."""

    needs: ClassVar[str] = "path"

    path: Place | None = key(None, "under data_root: .npy, .npz, .pt, .safetensors, Parquet, HDF5, clip-retrieval's")
    features: str | None = key(None, "the column, array or dataset of the vectors; null: the only one")
    names: str | None = key(
        None,
        "the column of the names (IMAGE#k or the words), or a text file; null: FILE.txt, or the manifest's order",
    )
    made_by: Name | None = key(None, "the text encoder that made them, for queries in words; null: no such queries")

    @property
    def maker(self) -> str | None:
        return self.made_by


class TextSettings(TextKindSettings):
    """Terms and how often they occur."""

    remedy: ClassVar[str] = "raise text.size, lower text.min_count, or add a text encoder that knows the language"

    lemmatise: bool = key(
        True,
        "use lemmas (simplemma) if most words of the training captions are English",
    )
    stop_words: bool = key(False, "leave out scikit-learn's English stop words ('under' is one of them)")
    max_ngram: Annotated[Positive, Field(le=3)] = key(
        2, "1 words only; 2 also pairs of neighbouring words; 3 also triples (of characters, see docs/encoders.md)"
    )
    size: Positive = key(3000, "number of terms: the most common of the training captions")
    min_count: Positive = key(2, "training captions that a term must occur in")
    idf: bool = key(True, "weight terms by inverse document frequency")
    normalise: bool = key(True, "scale every caption to unit length")
    vocabulary: Place | None = key(None, "model.json of a tf-idf encoder to keep as a collection grows")

    @property
    def learns(self) -> bool:
        return self.vocabulary is None

    def files(self, weights_root: str) -> dict[str, Path]:
        return {"file": Path(self.vocabulary)} if self.vocabulary else {}


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


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


Weights = Annotated[tuple[NonNegative, ...], Field(min_length=1), BeforeValidator(_listed)]


class EveryTextKind(Section):
    normalise: tuple[Literal["sqrt", "l2"], ...] = key(("l2",), "steps on each vector, in order: sqrt (signed) | l2")
    centre: Literal["none", "mean", "whiten"] = key(
        "none", "dense vectors: none | mean (subtract the training captions' mean) | whiten (and decorrelate)"
    )
    weight: Weights = key((1,), "factor on its vectors; of several, dev chooses")
    storage: Literal["float16", "float32"] = key("float16", "dense vectors: float16 | float32")


class TextEncoderEntry(with_kinds(EveryTextKind, TEXT_ENCODERS, "kind {}: ")):
    name: Name = key(..., "a name of your choice")
    kind: Literal[tuple(spec.name for spec in TEXT_ENCODERS)] | ImportPath = key(
        ...,
        "tf-idf | averaged (word vectors) | fisher (vectors of word vectors) | transformers, sentence-transformers,"
        " open_clip | imported | module:Class of yours",
    )

    @property
    def spec(self) -> TextEncoderSpec:
        return text_encoder_spec(self.kind)

    @property
    def own(self) -> TextKindSettings:
        """The settings of its kind."""
        return getattr(self, self.spec.key) if self.spec.section else TextKindSettings()

    @property
    def learns(self) -> bool:
        """Whether it is, or a class of the user's may be, made from the training sentences."""
        return self.own.learns or self.centre != "none" or bool(self.spec.stored_kind)

    @property
    def prepared(self) -> bool:
        """Whether it can encode a text; vectors made elsewhere are all that there is of some."""
        return self.spec.reads == "texts" or self.own.maker is not None

    def decisive(self) -> dict[str, Any]:
        """The keys that decide what it is."""
        return {"kind": self.kind, "centre": self.centre, "settings": self.own.model_dump()}

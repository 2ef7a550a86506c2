"""The kinds of text encoders: the only place that names them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config.registry import Spec, find_spec


@dataclass(frozen=True, kw_only=True)
class TextEncoderSpec(Spec):
    """A kind of text encoder, whose class is a pipeline.encoders.text_encoder.TextEncoder, which states the contract.

    Its settings, at `section`, are a pipeline.config.text.TextKindSettings and a key of its entry in a configuration.
    """

    sparse: bool = False
    """Whether its vectors are a csr_array, not an ndarray."""
    reads: Literal["texts", "vectors"] = "texts"
    """What it takes of a sentence; `vectors`: its vector that was made elsewhere."""
    adds_words: bool = False
    """Whether the vector of a sentence is the sum of those of its words (see `encode_words`), but for a factor."""
    dim: Callable[[Any, int], int | None] = lambda entry, word: None
    """The most dimensions that its vectors have by its entry and the dimensions of a `word`'s vector, or None."""


def _text(name: str, place: str, section: str | None = None, **more: Any) -> TextEncoderSpec:
    section = section and f"pipeline.config.text:{section}Settings"
    return TextEncoderSpec(name=name, place=f"pipeline.encoders.{place}", section=section, **more)


TEXT_ENCODERS: tuple[TextEncoderSpec, ...] = (
    _text("tf-idf", "tfidf:TfidfEncoder", "Text", sparse=True, adds_words=True,
          dim=lambda entry, word: entry.tf_idf.size),
    _text("averaged", "averaged:AveragedEncoder", "Averaged", adds_words=True, dim=lambda entry, word: word),
    _text("fisher", "fisher:FisherEncoder", "Fisher", extra="fisher",
          dim=lambda entry, word: entry.fisher.components * (2 * (entry.fisher.principal or word) + 1)),
    _text("transformers", "libraries.transformers_text:TransformersTextEncoder", "Library", extra="transformers"),
    _text("sentence-transformers", "libraries.transformers_text:SentenceTransformersEncoder", "Library",
          extra="sentence-transformers"),
    _text("open_clip", "libraries.open_clip_text:OpenClipTextEncoder", "OpenClipText", extra="open-clip"),
    _text("imported", "text_encoder:ImportedTextEncoder", "Imported", reads="vectors"),
)  # fmt: skip


def text_encoder_spec(kind: str) -> TextEncoderSpec:
    """The `kind`, or one at an import path; UsageError lists the known ones."""
    return find_spec("kind of text encoder", kind, TEXT_ENCODERS)

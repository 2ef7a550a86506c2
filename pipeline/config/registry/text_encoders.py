"""The kinds of text encoder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config.registry.spec import Spec, find
from pipeline.hubs import extra_of


@dataclass(frozen=True, kw_only=True)
class TextEncoderSpec(Spec):
    """A kind of text encoder: its class at `place`, and the class of its own settings, `section` (None: it has none), a
    pipeline.config.schema.text.TextKindSettings, which is a key of its entry in a configuration.

    The class is a pipeline.text.text_encoder.TextEncoder. `prepare(entry, material)` makes the encoder from its entry
    and a TextMaterial of that module; `settings()` (JSON, with its `kind`) and `tensors()` are what
    `from_parts(settings, tensors)` turns back into it. `encode(texts)` maps n texts to (n, `dim`) float32, a csr_array
    if the kind is `sparse`, else an ndarray. `unknown(text)`, `knows(text)`, `searches(text)` and `suggest(word)` say
    which words mean something to it.
    """

    sparse: bool = False
    reads: Literal["texts", "vectors"] = "texts"
    """What it takes of a sentence; `vectors`: its vector that was made elsewhere."""
    adds_words: bool = False
    """Whether the vector of a sentence is the sum of those of its words (see `encode_words`), but for a factor."""
    dim: Callable[[Any, int], int | None] = lambda entry, word: None
    """The most dimensions that its vectors have by its entry and the dimensions of a `word`'s vector, or None."""


def _spec(name: str, place: str, section: str, **more: Any) -> TextEncoderSpec:
    section = section if ":" in section else f"pipeline.config.schema.text:{section}Settings"
    return TextEncoderSpec(name=name, place=f"pipeline.text.{place}", section=section, **more)


def _library(name: str, place: str, section: str = "Library") -> TextEncoderSpec:
    """Networks of another library, which is an extra."""
    return _spec(name, place, section, extra=extra_of(name))


TEXT_ENCODERS: tuple[TextEncoderSpec, ...] = (
    _spec("tf-idf", "tfidf:TfidfEncoder", "pipeline.config.schema.text:TextSettings", sparse=True,
          adds_words=True, dim=lambda entry, word: entry.tf_idf.size),
    _spec("averaged", "averaged:AveragedEncoder", "Averaged", adds_words=True, dim=lambda entry, word: word),
    _spec("fisher", "fisher:FisherEncoder", "Fisher", extra="fisher",
          dim=lambda entry, word: entry.fisher.components * (2 * (entry.fisher.principal or word) + 1)),
    _library("transformers", "transformers_text:TransformersTextEncoder"),
    _library("sentence-transformers", "transformers_text:SentenceTransformersEncoder"),
    _library("open_clip", "open_clip_text:OpenClipTextEncoder", "OpenClipText"),
    _spec("onnx", "onnx_text:OnnxTextEncoder", "OnnxText", extra="onnx"),
    _spec("imported", "text_encoder:ImportedTextEncoder", "Imported", reads="vectors"),
)  # fmt: skip


def text_encoder_spec(kind: str) -> TextEncoderSpec:
    """The `kind`; UsageError lists the known ones."""
    return find("kind of text encoder", kind, TEXT_ENCODERS)

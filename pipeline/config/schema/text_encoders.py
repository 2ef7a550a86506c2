"""The entries of text encoders."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model

from pipeline.config.registry.spec import import_place
from pipeline.config.registry.text_encoders import TEXT_ENCODERS, TextEncoderSpec, text_encoder_spec
from pipeline.config.schema.section import Name, NonNegative, Section, key
from pipeline.config.schema.text import TextKindSettings

OWN = {spec.key: import_place(spec.section) for spec in TEXT_ENCODERS if spec.section}
"""Key of an entry -> the section of the kind of text encoder whose settings it holds."""
RESERVED = ("documents", "encoders", "labels", "parses", "simulated", "tokens", "trees", "word-vectors")
"""Names that something else has in a run's folder `text`, with or without an ending."""


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


Weights = Annotated[tuple[NonNegative, ...], Field(min_length=1), BeforeValidator(_listed)]


class EveryTextKind(Section):
    normalise: tuple[Literal["sqrt", "l2"], ...] = key(
        ("l2",), "of each text's vector, in this order: sqrt (signed) | l2 | (none)"
    )
    centre: Literal["none", "mean", "whiten"] = key(
        "none", "dense vectors: none | mean (subtract that of the training sentences) | whiten (then decorrelate)"
    )
    weight: Weights = key((1,), "factor of its block against the others; of several the best on dev is chosen")
    storage: Literal["float16", "float32"] = key("float16", "of dense vectors: float16 | float32")


WithTextKinds = create_model(
    "WithTextKinds",
    __base__=EveryTextKind,
    **{
        name: (section, key(section, f"kind {name.replace('_', '-')}: {section.__doc__}"))
        for name, section in OWN.items()
    },
)


class TextEncoderEntry(WithTextKinds):
    name: Name = key(..., "a name of your own: artefacts and models refer to it")
    kind: Literal[tuple(spec.name for spec in TEXT_ENCODERS)] = key(
        ...,
        "tf-idf | averaged (word vectors) | fisher (vectors of word vectors) | transformers, sentence-transformers,"
        " open_clip, onnx | imported",
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
        """Whether it is made from the training sentences."""
        return self.own.learns or self.centre != "none"

    @property
    def prepared(self) -> bool:
        """Whether it can encode a text; vectors made elsewhere are all that there is of some."""
        return self.spec.reads == "texts" or self.own.maker is not None

    def decisive(self) -> dict[str, Any]:
        """The keys that decide what it is."""
        return {"kind": self.kind, "centre": self.centre, "settings": self.own.model_dump()}

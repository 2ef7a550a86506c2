"""The entries of text encoders."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model

from pipeline.settings.section import Name, NonNegative, Section
from pipeline.settings.text_encoders import TextKindSettings
from pipeline.specs.places import import_place
from pipeline.specs.text_encoders import TEXT_ENCODERS, TextEncoderSpec, text_encoder_spec

OWN = {spec.key: import_place(spec.section) for spec in TEXT_ENCODERS if spec.section}
"""Key of an entry -> the section of the kind of text encoder whose settings it holds."""
ELSEWHERE = {"tf_idf": "text"}
"""Key of an entry -> the section of the configuration that stands below it, where that is not of the defaults."""
RESERVED = ("documents", "encoders", "labels", "parses", "simulated", "tokens", "trees", "word-vectors")
"""Names that something else has in a run's folder `text`, with or without an ending."""


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


Weights = Annotated[tuple[NonNegative, ...], Field(min_length=1), BeforeValidator(_listed)]


class EveryTextKind(Section):
    normalise: tuple[Literal["sqrt", "l2"], ...]
    centre: Literal["none", "mean", "whiten"]
    weight: Weights
    storage: Literal["float16", "float32"]


def _with(base: type[Section], name: str, keys: set[str]) -> type[Section]:
    return create_model(
        name, __base__=base, **{key: (OWN[key], Field({}, validate_default=True)) for key in OWN if key in keys}
    )


TextEncoderDefaults = _with(EveryTextKind, "TextEncoderDefaults", OWN.keys() - ELSEWHERE.keys())


class TextEncoderEntry(_with(TextEncoderDefaults, "EveryTextEncoder", set(ELSEWHERE))):
    name: Name
    kind: Literal[tuple(spec.name for spec in TEXT_ENCODERS)]

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

"""The entries of image encoders."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, create_model, model_validator

from pipeline.settings import models
from pipeline.settings.section import Name, Number, Positive, Section
from pipeline.specs.encoders import ENCODERS, TRAINED, EncoderSpec, encoder_spec
from pipeline.specs.places import import_place

OWN = {spec.key: import_place(spec.section) for spec in ENCODERS if spec.section}
"""Key of an entry -> the section of the kind of encoder whose settings it holds."""

IMPORTED = {"path", "features", "names", "made_by"}
"""Keys of features made elsewhere."""


class LibraryDefaults(Section):
    weights: str | None
    resize: Positive | None
    crop: Positive | None
    mean: tuple[Number, Number, Number] | None
    std: tuple[Number, Number, Number] | None
    interpolation: Literal["bilinear", "bicubic", "lanczos", "nearest"] | None


class EveryKind(LibraryDefaults):
    layer: Literal["average", "fc6", "fc7"]
    file: str | None
    sha256: str | None
    flip: bool
    of: Name | None
    pooling: Literal["mean", "max"]
    path: str | None
    features: str | None
    names: str | None
    made_by: Name | None
    kind: Literal[tuple(spec.name for spec in ENCODERS)] | None = Field(exclude=True)


EncoderDefaults = create_model(
    "EncoderDefaults",
    __base__=EveryKind,
    **{key: (section, Field({}, validate_default=True)) for key, section in OWN.items()},
)


class Encoder(EncoderDefaults):
    name: Name
    architecture: str

    @property
    def spec(self) -> EncoderSpec:
        return encoder_spec(self.kind, self.architecture)

    @property
    def prepared(self) -> bool:
        """Whether it can describe an image; features made elsewhere are all that there is of some."""
        return self.spec.reads != "vectors" or self.made_by is not None

    def decisive(self) -> dict[str, Any]:
        """The keys that decide what it is: none of other kinds', and `kind` where the architecture implies another."""
        spec = self.spec
        kind = {} if spec is encoder_spec(None, self.architecture) else {"kind": spec.name}
        if spec.reads == "regions":
            return kind | self.model_dump(include={"of", "pooling", spec.key})
        if spec.reads == "vectors":
            return self.model_dump(include=IMPORTED)
        return kind | self.model_dump(exclude={"of", "pooling", *IMPORTED, *OWN} - {spec.key})

    @model_validator(mode="before")
    @classmethod
    def _named_by_its_kind(cls, values: Any) -> Any:
        """The architecture of most kinds is their name; weights that are not said are the file that is."""
        if not isinstance(values, Mapping):
            return values
        if values.get("weights", "") is None:
            values = {**values, "weights": "file" if values.get("file") else "hub"}
        if "architecture" in values:
            return values
        named = [spec.name for spec in ENCODERS if spec.name == values.get("kind") and not spec.architectures]
        return {**values, "architecture": named[0]} if named else values

    @model_validator(mode="after")
    def _crop_fits(self) -> "Encoder":
        if self.crop is not None and self.crop > (self.resize or 0):
            least = "give resize" if self.resize is None else f"crop {self.crop} is larger than resize {self.resize}"
            raise ValueError(f"encoder {self.name}: {least}, the shorter side of which crop is a part")
        return self

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> "Encoder":
        try:
            self._check(self.spec)
        except ValueError as error:
            raise ValueError(f"encoder {self.name}: {error}") from None
        return self

    def _check(self, spec: EncoderSpec) -> None:
        """ValueError for what no encoder of its kind can be."""
        if not spec.architectures and self.architecture != spec.name:
            raise ValueError(f"kind {spec.name} has no architecture {self.architecture}; leave one of them out")
        for key in () if spec.defaults else LibraryDefaults.model_fields.keys() - {"crop"}:
            if getattr(self, key) is None:
                raise ValueError(f"kind {spec.name} needs `{key}`; do not set it to null")
        known = self.weights in spec.weights or spec.tags
        if not known and (spec.weights or self.weights in ("file", *TRAINED)):
            known = f"one of {', '.join(spec.weights)}" if spec.weights else "none"
            raise ValueError(f"kind {spec.name} has no weights {self.weights}; give {known} as `weights`")
        if (self.weights == "file") != (self.file is not None):
            raise ValueError("give `file` exactly when `weights` is file")
        if self.sha256 is not None and self.file is None:
            raise ValueError(f"`sha256` is of a file; `weights` is {self.weights}")
        if (spec.reads == "regions") != (self.of is not None):
            pooling = " or ".join(one.name for one in ENCODERS if one.reads == "regions")
            raise ValueError(f"give `of` exactly when `architecture` is {pooling}")
        if (spec.reads == "vectors") != (self.path is not None):
            raise ValueError("give `path` exactly when `kind` is imported")
        if self.path is None and (idle := [key for key in sorted(IMPORTED) if getattr(self, key) is not None]):
            raise ValueError(f"`{idle[0]}` is of imported features; leave it out")
        if spec.check:
            import_place(spec.check)(self)


class StudyWithEncoders(models.StudySettings):
    encoders: tuple[Encoder, ...]

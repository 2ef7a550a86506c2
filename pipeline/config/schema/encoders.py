"""The entries of image encoders."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, create_model, model_validator

from pipeline.config.registry.encoders import ENCODERS, TRAINED, EncoderSpec, encoder_spec
from pipeline.config.registry.spec import import_place
from pipeline.config.schema.section import Name, Number, Positive, Section, key

OWN = {spec.key: import_place(spec.section) for spec in ENCODERS if spec.section}
"""Key of an entry -> the section of the kind of encoder whose settings it holds."""

MODELS_OWN = ("weights", "resize", "crop", "mean", "std", "interpolation")
"""Keys that another library's model says itself, unless its entry does."""
IMPORTED = {"path", "features", "names", "made_by"}
"""Keys of features made elsewhere."""


class EveryKind(Section):
    kind: Literal[tuple(spec.name for spec in ENCODERS)] | None = Field(
        None,
        exclude=True,
        description="network | standard (descriptors) | pooled (regions) | imported | open_clip, timm, transformers,"
        " onnx; "
        "null: as its architecture tells",
    )
    weights: str | None = key(
        "torchvision",
        "networks: untrained (drawn from `seed`) | torchvision (downloaded) | file | finetuned (on boxes)",
    )
    resize: Positive | None = key(256, "shorter side in pixels, before the crop")
    crop: Positive | None = key(224, "side of the central square; null squashes the whole image to resize x resize")
    mean: tuple[Number, Number, Number] | None = key((0.485, 0.456, 0.406), "networks: of the channels, in [0, 1]")
    std: tuple[Number, Number, Number] | None = key((0.229, 0.224, 0.225), "likewise")
    interpolation: Literal["bilinear", "bicubic", "lanczos", "nearest"] | None = key(
        "bilinear", "bilinear | bicubic | lanczos | nearest, with antialiasing"
    )
    layer: Literal["average", "fc6", "fc7"] = key(
        "average", "networks: average (the last average pooling) | fc6 | fc7 (AlexNet and VGG)"
    )
    file: str | None = key(None, "weights: file; safetensors or a state dict, under weights_root")
    sha256: str | None = key(None, "of that file; null accepts any and records it")
    flip: bool = key(False, "average the features of the image and of its mirror image")
    of: Name | None = key(None, "architecture pooled: the encoder, one of regions.encoders, whose regions are pooled")
    pooling: Literal["mean", "max"] = key("mean", "likewise: mean | max, over the regions of an image")
    path: str | None = key(
        None,
        "kind imported: features made elsewhere, under data_root: .npy, .npz, .pt, .safetensors, Parquet, HDF5,"
        " clip-retrieval's folder",
    )
    features: str | None = key(None, "likewise: the column, array or dataset of the features; null: the only one")
    names: str | None = key(
        None, "likewise: of the images' names; or a text file beside it; null: FILE.txt, or the only one"
    )
    made_by: Name | None = key(
        None, "likewise: the encoder that made them, for queries by photograph; null: there are none"
    )


WithKinds = create_model(
    "WithKinds",
    __base__=EveryKind,
    **{
        name: (section, key(section, f"kind {name.replace('_', '-')}: {section.__doc__}"))
        for name, section in OWN.items()
    },
)


class Encoder(WithKinds):
    name: Name = key(..., "free; names the folder of its features")
    architecture: str = key(
        ..., "any torchvision classification model, or the name of another kind of encoder: standard, pooled"
    )

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
        if any(spec.own_defaults and spec.name == values.get("kind") for spec in ENCODERS):
            values = {**dict.fromkeys(MODELS_OWN), **values}
        if values.get("weights", "") is None:
            values = {**values, "weights": "file" if values.get("file") else "hub"}
        if "architecture" in values:
            return values
        named = [spec.name for spec in ENCODERS if spec.name == values.get("kind") and not spec.architectures]
        return {**values, "architecture": named[0]} if named else values

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> "Encoder":
        spec = self.spec
        if self.crop is not None and self.crop > (self.resize or 0):
            raise ValueError(f"crop {self.crop} is no part of a shorter side of {self.resize}; give a larger `resize`")
        if not spec.architectures and self.architecture != spec.name:
            raise ValueError(f"kind {spec.name} has no architecture {self.architecture}; leave one of them out")
        for name in () if spec.own_defaults else MODELS_OWN:
            if getattr(self, name) is None and name != "crop":
                raise ValueError(f"kind {spec.name} needs `{name}`; do not set it to null")
        known = self.weights in spec.weights or spec.tags
        if not known and (spec.weights or self.weights in ("file", *TRAINED)):
            known = f"one of {', '.join(spec.weights)}" if spec.weights else "none"
            raise ValueError(f"kind {spec.name} has no weights {self.weights}; give {known} as `weights`")
        if (self.weights == "file") != (self.file is not None):
            raise ValueError("give `file` exactly when `weights` is file")
        if (spec.reads == "regions") != (self.of is not None):
            pooling = " or ".join(one.name for one in ENCODERS if one.reads == "regions")
            raise ValueError(f"give `of` exactly when `architecture` is {pooling}")
        if (spec.reads == "vectors") != (self.path is not None):
            raise ValueError("give `path` exactly when `kind` is imported")
        if spec.check:
            import_place(spec.check)(self)
        return self

"""Sections about encoders of images and regions."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.config.messages import suggest
from pipeline.config.registry import ENCODERS, TRAINED, EncoderSpec, encoder_spec, import_place
from pipeline.config.section import (
    AboveZero,
    Count,
    ImportPath,
    Name,
    NonNegative,
    Number,
    Place,
    Positive,
    Precision,
    Section,
    Share,
    Side,
    Split,
    file_goes_with,
    key,
    with_kinds,
)

NETWORKS = re.compile(
    r"alexnet|convnext_(tiny|small|base|large)|densenet(121|161|169|201)|efficientnet_(b[0-7]|v2_[sml])|googlenet"
    r"|inception_v3|maxvit_t|mnasnet(0_5|0_75|1_0|1_3)|mobilenet_(v2|v3_(large|small))"
    r"|regnet_[xy]_(400mf|800mf|1_6gf|3_2gf|8gf|16gf|32gf)|regnet_y_128gf|resnet(18|34|50|101|152)"
    r"|resnext(50_32x4d|101_32x8d|101_64x4d)|shufflenet_v2_x(0_5|1_0|1_5|2_0)|squeezenet1_[01]|swin_(v2_)?[bst]"
    r"|vgg1[1369](_bn)?|vit_([bl]_(16|32)|h_14)|wide_resnet(50|101)_2"
)
"""Classification networks of torchvision, whose names are known without importing it, which takes seconds."""
DETECTORS = re.compile(r"fasterrcnn_(resnet50_fpn(_v2)?|mobilenet_v3_large_(320_)?fpn)")
HIDDEN_LAYERS = ("alexnet", "vgg")
"""How the networks begin that have the layers fc6 and fc7."""
WITHOUT_MAPS = ("vit_",)
"""How the networks begin that have no map of activations."""


def check_network(encoder: Any) -> None:
    """ValueError names the nearest network, or says why the encoder's has no such layer."""
    name, hidden = encoder.architecture, encoder.layer != "average"
    if not NETWORKS.fullmatch(name):
        _require(name, "architecture")
    if hidden and not name.startswith(HIDDEN_LAYERS):
        raise ValueError(f"{name} has no layer {encoder.layer}, only AlexNet and VGG do; set layer to average")
    if not hidden and name.startswith(WITHOUT_MAPS):
        raise ValueError(f"{name} has no map of activations to average; choose a convolutional network")


def _require(name: str, kind: str) -> None:
    from torchvision import models

    module, beginning = (models.detection, "fasterrcnn") if kind == "detector" else (models, "")
    installed = [one for one in models.list_models(module=module) if one.startswith(beginning)]
    if name not in installed:
        raise ValueError(f"unknown {kind} {name}; {suggest(name, installed, 'torchvision has')}")


class StandardDimensionsSettings(Section):
    gist: Positive = key(500, "of 960")
    rgb: Positive = key(500, "of 512")
    csift: Positive = key(1000, "of descriptor_dim x codebook")
    rgbsift: Positive = key(1000, "likewise")
    hog: Positive = key(1000, "of (descriptor_dim, at most 36) x codebook")


class StandardSettings(Section):
    """GIST, colours, VLAD of CSIFT, RGBSIFT and HOG."""

    images: Annotated[Positive, Field(ge=2)] = key(4000, "train images that the reductions are learned from")
    codebook_images: Positive = key(1000, "those of them whose local descriptors the codebooks are learned from")
    descriptors: Positive = key(100, "of each kind from each of these")
    grid_step: Positive = key(8, "pixels between local descriptors")
    patch: Annotated[Positive, Field(ge=4, multiple_of=2)] = key(16, "side of the square that one describes; even")
    descriptor_dim: Positive = key(64, "dimensions that local descriptors are reduced to before the codebook")
    codebook: Positive = key(100, "words; a VLAD has descriptor_dim x codebook dimensions")
    dimensions: StandardDimensionsSettings = key(
        StandardDimensionsSettings, "that each part is reduced to; at most one fewer than images"
    )


def check_standard(encoder: Any) -> None:
    """ValueError for descriptors that are larger than the picture."""
    side = encoder.crop or encoder.resize
    if encoder.standard.patch > side:
        raise ValueError(f"standard.patch {encoder.standard.patch} exceeds the side {side}")


class ExtractSettings(Section):
    precision: Precision = key("auto", "auto (bfloat16 where it is fast and changes little) | float32 | bfloat16")
    batch_size: Positive | None = key(
        None, "images per forward pass; null: 32 on a processor; on a GPU 256, doubled while that is faster and fits"
    )
    checkpoint_images: Positive = key(1024, "a killed job repeats about this many images")
    decode_workers: Count | None = key(
        None, "decoding processes; a crash costs one image; null: 2, with a GPU the job's threads less 2"
    )
    storage: Literal["float16", "float32"] = key("float16", "float16 | float32")
    mapped: dict[Name, Name] = key(
        {}, "encoders whose features are mapped from another's, {new: old}; `migrate` sets it"
    )
    mapping_images: Positive = key(1000, "images that both encoders see for the map")

    def decisive(self) -> dict[str, Any]:
        """The keys that decide the features. What `auto` takes follows from the machine: the shards' cards say it."""
        return self.model_dump(include={"precision", "storage"})


class DetectorSettings(Section):
    architecture: str = key(
        "fasterrcnn_mobilenet_v3_large_320_fpn", "a detector of torchvision whose name begins with fasterrcnn"
    )
    weights: Literal["torchvision", "file"] = key("torchvision", "torchvision (downloaded) | file")
    file: Place | None = key(None, "weights: file; safetensors or a state dict, under weights_root")
    sha256: str | None = key(None, "of that file; null accepts any and records it")
    stage: Literal["detections", "rpn"] = key("detections", "detections | rpn (the region proposal network alone)")

    _file = file_goes_with("weights")

    @field_validator("architecture")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if not DETECTORS.fullmatch(name):
            _require(name, "detector")
        return name


class RegionsSettings(Section):
    encoders: tuple[Name, ...] = key((), "encoders that extract features of regions")
    geometry: bool = key(False, "give models of regions the position and size of each region too")
    proposals: Literal["boxes", "grid", "selective-search", "faster-rcnn"] = key(
        "boxes", "boxes (the collection's or a file's) | grid | selective-search | faster-rcnn"
    )
    boxes: Place | None = key(None, "a file or folder of boxes under data_root; null: the collection's")
    count: Positive = key(19, "regions per image, besides the whole image (Karpathy and Fei-Fei 2015, Niu et al. 2017)")
    iou: Share = key(0.7, "of two proposals that overlap more, the one with the lower score is dropped")
    fill: bool = key(True, "fill up with windows of a grid")
    detector: DetectorSettings = key(DetectorSettings)
    features: Literal["crops", "roi-align"] = key(
        "crops", "crops (each region through the network) | roi-align (of one map)"
    )
    crop_side: Side | None = key(None, "crops: side in pixels that a region is warped to; null: the encoder's own")
    context: Count = key(16, "crops: pixels of context on each side of the box")
    score: Literal["proposal", "classifier"] = key(
        "proposal", "how regions are ranked: proposal | classifier (of a finetuned encoder, as in R-CNN)"
    )
    checkpoint_images: Positive = key(256, "a killed job repeats about this many images")

    def decisive(self) -> dict[str, Any]:
        """The keys that decide which regions an image has and what their features are."""
        return self.model_dump(mode="json", exclude={"encoders", "boxes", "geometry", "checkpoint_images"})


class FinetuneSettings(Section):
    start: Literal["untrained", "torchvision", "file"] = key(
        "untrained", "untrained (drawn from `seed`) | torchvision (downloaded) | file"
    )
    file: Place | None = key(None, "start: file; safetensors or a state dict, under weights_root")
    sha256: str | None = key(None, "of that file; null accepts any and records it")
    splits: Annotated[tuple[Split, ...], Field(min_length=1)] = key(("train", "weak"), "splits whose boxes are used")
    side: Positive = key(64, "side in pixels that regions are warped to")
    context: Count = key(8, "pixels of context on each side of the box")
    iterations: Positive = key(300, "steps of gradient descent")
    images: Positive = key(32, "images per batch")
    learning_rate: AboveZero = key(0.03, "peak, after a tenth of the iterations; then a cosine decay")
    body_rate: NonNegative = key(0.1, "learning rate of pretrained weights, as a share of that")
    precision: Precision = key("auto", "auto (bfloat16 where the hardware has it) | float32 | bfloat16")
    checkpoint_seconds: NonNegative = key(30, "a killed job repeats at most about this many seconds")

    _file = file_goes_with("start")


class ImageViewSettings(Section):
    normalise: tuple[Literal["sqrt", "l2"], ...] | None = key(
        None,
        "steps on each encoder's features, in order: sqrt (signed) | l2; null: [sqrt, l2] for networks, timm and"
        " descriptors, [l2] for open_clip, transformers, imported vectors and your own code",
    )


MODELS_OWN = ("weights", "resize", "crop", "mean", "std", "interpolation")
"""Keys that another library's model says itself, unless its entry does."""
IMPORTED = {"path", "features", "names", "made_by"}
"""Keys of features made elsewhere."""


Deviation = Annotated[Number, Field(ge=0.001)]
"""Standard deviation of a channel whose values lie in [0, 1]. A smaller one would make features that are not finite."""


class EveryKind(Section):
    kind: Literal[tuple(spec.name for spec in ENCODERS)] | ImportPath | None = Field(
        None,
        exclude=True,
        description="network | standard (descriptors) | pooled (regions) | imported | open_clip, timm, transformers |"
        " module:Class of yours; null: follows from the architecture",
    )
    weights: str | None = key(
        "torchvision",
        "networks: untrained (drawn from `seed`) | torchvision (downloaded) | file | finetuned (on boxes)",
    )
    resize: Side | None = key(256, "shorter side in pixels, before the crop")
    crop: Side | None = key(224, "side of the central square; null squashes the whole image to resize x resize")
    mean: tuple[Number, Number, Number] | None = key((0.485, 0.456, 0.406), "networks: mean of each channel, in [0, 1]")
    std: tuple[Deviation, Deviation, Deviation] | None = key(
        (0.229, 0.224, 0.225), "networks: standard deviation of each channel"
    )
    interpolation: Literal["bilinear", "bicubic", "lanczos", "nearest"] | None = key(
        "bilinear", "bilinear | bicubic | lanczos | nearest, with antialiasing"
    )
    layer: Literal["average", "fc6", "fc7"] = key(
        "average", "networks: average (the last average pooling) | fc6 | fc7 (AlexNet and VGG)"
    )
    file: Place | None = key(None, "weights: file; safetensors or a state dict, under weights_root")
    sha256: str | None = key(None, "of that file; null accepts any and records it")
    flip: bool = key(False, "average the features of the image and its mirror image")
    of: Name | None = key(None, "pooled: the encoder of regions.encoders whose regions are pooled")
    pooling: Literal["mean", "max"] = key("mean", "pooled: mean | max over the regions of an image")
    path: Place | None = key(
        None,
        "imported: features made elsewhere, under data_root: .npy, .npz, .pt, .safetensors, Parquet, HDF5,"
        " clip-retrieval's folder",
    )
    features: str | None = key(None, "imported: the column, array or dataset of the features; null: the only one")
    names: str | None = key(None, "imported: the column of the names, or a text file; null: FILE.txt, or the only one")
    made_by: Name | None = key(None, "imported: the encoder that made them, for queries by photo")


class Encoder(with_kinds(EveryKind, ENCODERS, "kind {}: ")):
    name: Name = key(..., "a name of your choice")
    architecture: str = key(..., "a classification network of torchvision, or standard, or pooled")

    _file = file_goes_with("weights")

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
        others = {other.key for other in ENCODERS if other.key != spec.key}
        return kind | self.model_dump(exclude={"of", "pooling", *IMPORTED, *others})

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
        kind = values.get("kind")
        plain = [spec.name for spec in ENCODERS if not spec.architectures]
        return {**values, "architecture": kind} if kind in plain or ":" in str(kind) else values

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
        if (spec.reads == "regions") != (self.of is not None):
            pooling = " or ".join(one.name for one in ENCODERS if one.reads == "regions")
            raise ValueError(f"give `of` exactly when `architecture` is {pooling}")
        if (spec.reads == "vectors") != (self.path is not None):
            raise ValueError("give `path` exactly when `kind` is imported")
        if spec.check:
            import_place(spec.check)(self)
        return self

"""Sections about image encoders and regions."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.settings.section import (
    AboveZero,
    BelowOne,
    Count,
    Name,
    NonNegative,
    Number,
    Positive,
    PositiveShare,
    Section,
    Share,
    Split,
)


class StandardDimensionsSettings(Section):
    gist: Positive
    rgb: Positive
    csift: Positive
    rgbsift: Positive
    hog: Positive


class StandardSettings(Section):
    images: Annotated[Positive, Field(ge=2)]
    codebook_images: Positive
    descriptors: Positive
    grid_step: Positive
    patch: Annotated[Positive, Field(ge=4, multiple_of=2)]
    descriptor_dim: Positive
    codebook: Positive
    dimensions: StandardDimensionsSettings


def check_standard(encoder: Any) -> None:
    """ValueError for descriptors that are larger than the picture."""
    side = encoder.crop or encoder.resize
    if encoder.standard.patch > side:
        raise ValueError(f"standard.patch {encoder.standard.patch} exceeds the side {side}")


class ExtractSettings(Section):
    precision: Literal["auto", "float32", "bfloat16"]
    batch_size: Positive | None
    checkpoint_images: Positive
    decode_workers: Count | None
    storage: Literal["float16", "float32"]

    def decisive(self) -> dict[str, Any]:
        """The keys that decide the features. What `auto` takes follows from the machine: the shards' cards say it."""
        return self.model_dump(include={"precision", "storage"})


class GridSettings(Section):
    """Windows at several scales: each of `scales` (of the image's sides), `aspects` (width / height, times the
    image's own), and neighbours sharing `overlap` of their sides."""

    scales: Annotated[tuple[PositiveShare, ...], Field(min_length=1)]
    aspects: Annotated[tuple[AboveZero, ...], Field(min_length=1)]
    overlap: BelowOne


class SearchSettings(Section):
    """Selective search: `mode` is fast or quality; wider images are made `width` pixels wide first."""

    mode: Literal["fast", "quality"]
    width: Positive


class DetectorSettings(Section):
    architecture: str
    weights: Literal["torchvision", "file"]
    file: str | None
    sha256: str | None
    stage: Literal["detections", "rpn"]

    @model_validator(mode="after")
    def _file_goes_with_weights(self) -> "DetectorSettings":
        if (self.weights == "file") != (self.file is not None):
            raise ValueError("regions.detector: give `file` exactly when `weights` is file")
        return self


class RegionsSettings(Section):
    encoders: tuple[Name, ...]
    geometry: bool
    proposals: Literal["boxes", "grid", "selective-search", "faster-rcnn"]
    boxes: str | None
    count: Positive
    min_score: Number
    min_side: Annotated[Number, Field(ge=1)]
    iou: Share
    fill: bool
    grid: GridSettings
    search: SearchSettings
    detector: DetectorSettings
    features: Literal["crops", "roi-align"]
    crop_side: Positive | None
    context: Count
    map_side: Positive
    map_step: Positive
    map_aspect: Annotated[Number, Field(ge=1)]
    score: Literal["proposal", "classifier"]
    candidates: Positive
    dimensions: Positive | None
    checkpoint_images: Positive

    @property
    def reduced(self) -> bool:
        """Whether models read the features of regions in fewer dimensions."""
        return self.dimensions is not None

    def decisive(self) -> dict[str, Any]:
        """The keys that decide which regions an image has and what their features are."""
        return self.model_dump(
            mode="json", exclude={"encoders", "boxes", "geometry", "dimensions", "checkpoint_images"}
        )


class FinetuneSettings(Section):
    start: Literal["untrained", "torchvision", "file"]
    file: str | None
    sha256: str | None
    splits: Annotated[tuple[Split, ...], Field(min_length=1)]
    held_out: Split
    side: Positive
    context: Count
    iterations: Positive
    images: Positive
    positives: Positive
    background: Positive
    positive_iou: PositiveShare
    background_iou: PositiveShare
    learning_rate: AboveZero
    body_rate: NonNegative
    momentum: BelowOne
    weight_decay: NonNegative
    clip: AboveZero
    precision: Literal["auto", "float32", "bfloat16"]
    checkpoint_seconds: NonNegative
    held_out_images: Positive
    proposals: Literal["grid", "selective-search"]
    grid: GridSettings
    candidates: Positive
    suppression_iou: Share

    @model_validator(mode="after")
    def _file_goes_with_start(self) -> "FinetuneSettings":
        if (self.start == "file") != (self.file is not None):
            raise ValueError("finetune: give `file` exactly when `start` is file")
        return self


class ImageViewSettings(Section):
    normalise: tuple[Literal["sqrt", "l2"], ...]

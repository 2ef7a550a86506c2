"""Sections about image encoders and regions."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.config.schema.section import (
    AboveZero,
    Count,
    Name,
    NonNegative,
    Positive,
    Precision,
    Section,
    Share,
    Split,
    key,
)


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
    patch: Annotated[Positive, Field(ge=4, multiple_of=2)] = key(
        16, "side of the square that one describes, in pixels; even"
    )
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
        None, "images in one forward pass; null: 32 on a processor; on a GPU 256, doubled while that is faster and fits"
    )
    checkpoint_images: Positive = key(1024, "a killed job repeats at most this many images")
    decode_workers: Count | None = key(
        None, "processes that decode; each one's death costs one image; null: 2, beside a GPU the job's threads less 2"
    )
    storage: Literal["float16", "float32"] = key("float16", "float16 | float32")

    def decisive(self) -> dict[str, Any]:
        """The keys that decide the features. What `auto` takes follows from the machine: the shards' cards say it."""
        return self.model_dump(include={"precision", "storage"})


class DetectorSettings(Section):
    architecture: str = key(
        "fasterrcnn_mobilenet_v3_large_320_fpn", "torchvision's detectors that begin with fasterrcnn"
    )
    weights: Literal["torchvision", "file"] = key("torchvision", "torchvision (downloaded) | file")
    file: str | None = key(None, "weights: file; safetensors or a state dict, under weights_root")
    sha256: str | None = key(None, "of that file; null accepts any and records it")
    stage: Literal["detections", "rpn"] = key("detections", "detections | rpn (the region proposal network alone)")

    @model_validator(mode="after")
    def _file_goes_with_weights(self) -> "DetectorSettings":
        if (self.weights == "file") != (self.file is not None):
            raise ValueError("regions.detector: give `file` exactly when `weights` is file")
        return self


class RegionsSettings(Section):
    encoders: tuple[Name, ...] = key((), "encoders whose features of regions are wanted, each in a folder of its name")
    geometry: bool = key(False, "tell models that look at regions where in the image each lies, and how large it is")
    proposals: Literal["boxes", "grid", "selective-search", "faster-rcnn"] = key(
        "boxes", "boxes (the collection's or a file's) | grid | selective-search | faster-rcnn"
    )
    boxes: str | None = key(None, "a file of boxes under data_root, or a folder of them; null: the collection's")
    count: Positive = key(19, "regions of an image beside the whole image (Karpathy and Fei-Fei 2015, Niu et al. 2017)")
    iou: Share = key(0.7, "of two proposals that overlap more, the one of lower score is left out")
    fill: bool = key(True, "make up the number with windows of the grid")
    detector: DetectorSettings = key(DetectorSettings, "faster-rcnn")
    features: Literal["crops", "roi-align"] = key(
        "crops", "crops (every region through the network) | roi-align (one map an image)"
    )
    crop_side: Positive | None = key(None, "crops: pixels that a region is warped to; null for the encoder's own side")
    context: Count = key(16, "crops: of these, from around the box on each side")
    score: Literal["proposal", "classifier"] = key(
        "proposal", "proposal | classifier (highest foreground probability; encoders of finetune)"
    )
    dimensions: Positive | None = key(
        None, "principal components that models read in place of a region's features; null: the features"
    )
    checkpoint_images: Positive = key(256, "a killed job repeats at most this many images")

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
    start: Literal["untrained", "torchvision", "file"] = key(
        "untrained", "untrained (drawn from `seed`) | torchvision (downloaded) | file"
    )
    file: str | None = key(None, "start: file; safetensors or a state dict, under weights_root")
    sha256: str | None = key(None, "of that file; null accepts any and records it")
    splits: Annotated[tuple[Split, ...], Field(min_length=1)] = key(("train", "weak"), "whose boxes are learned from")
    side: Positive = key(64, "pixels that regions are warped to")
    context: Count = key(8, "of these, from around the box on each side")
    iterations: Positive = key(300, "steps of gradient descent")
    images: Positive = key(32, "in a batch")
    learning_rate: AboveZero = key(
        0.03, "at its highest; it rises for a tenth of the iterations, then falls by a cosine"
    )
    body_rate: NonNegative = key(0.1, "times it: that of weights that begin as torchvision's or a file's")
    precision: Precision = key("auto", "auto (bfloat16 where the hardware has it) | float32 | bfloat16")
    checkpoint_seconds: NonNegative = key(30, "a killed job repeats at most about this long")
    proposals: Literal["grid", "selective-search"] = key(
        "grid", "grid | selective-search: where objects are sought in these"
    )

    @model_validator(mode="after")
    def _file_goes_with_start(self) -> "FinetuneSettings":
        if (self.start == "file") != (self.file is not None):
            raise ValueError("finetune: give `file` exactly when `start` is file")
        return self


class ImageViewSettings(Section):
    normalise: tuple[Literal["sqrt", "l2"], ...] = key(
        ("sqrt", "l2"), "of each encoder's features, in this order: sqrt (signed) | l2 | (none)"
    )

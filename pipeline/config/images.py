"""Sections about features of images and of regions. The encoders themselves are in pipeline.config.encoders."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from pipeline.config.encoders import require_torchvision
from pipeline.config.section import (
    AboveZero,
    Count,
    Name,
    NonNegative,
    Place,
    Positive,
    Precision,
    Section,
    Share,
    Side,
    Split,
    file_goes_with,
    key,
)

DETECTORS = re.compile(r"fasterrcnn_(resnet50_fpn(_v2)?|mobilenet_v3_large_(320_)?fpn)")
"""Detectors of torchvision. Importing torchvision to ask for the names takes seconds."""


class ExtractSettings(Section):
    precision: Precision = key("auto", "auto (bfloat16 where it is fast and changes little) | float32 | bfloat16")
    batch_size: Positive | None = key(
        None, "images per forward pass; null: 32 on a CPU; on a GPU 256, doubled while that is faster and fits"
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
            require_torchvision(name, "detector")
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

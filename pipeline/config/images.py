"""Sections of the configuration about image features and regions. Encoders are in pipeline.config.encoders."""

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
"""Pattern of the names of torchvision's Faster R-CNN detectors. The names are listed here because the import of
torchvision takes seconds."""


class ExtractSettings(Section):
    precision: Precision = key(
        "auto",
        "Number type in which networks compute: auto (bfloat16 if it is fast and changes the features little) | "
        "float32 | bfloat16.",
    )
    batch_size: Positive | None = key(
        None,
        "Number of images per forward pass. null: 32 on a CPU. On a GPU it starts with 256 and is "
        "doubled as long as that is faster and fits into memory.",
    )
    checkpoint_images: Positive = key(
        1024, "Number of images between two checkpoints. A killed job repeats about this many images."
    )
    decode_workers: Count | None = key(
        None,
        "Number of decoding processes of a job. null: 2 on a CPU, and the threads of the job less 2 (at least 2) if it "
        "has GPUs.",
    )
    storage: Literal["float16", "float32"] = key("float16", "Number type of stored features: float16 | float32.")
    mapped: dict[Name, Name] = key(
        {},
        "Encoders whose features are mapped from the features of another encoder, as {new: old}. "
        "The command `migrate` sets this key.",
    )
    mapping_images: Positive = key(1000, "Number of images that both encoders encode, from which the map is learned.")

    def decisive(self) -> dict[str, Any]:
        """Return the keys on which features depend, with their values.

        `precision` may be `auto`. The commit record of each shard has the precision that was chosen.
        """
        return self.model_dump(include={"precision", "storage"})


class DetectorSettings(Section):
    architecture: str = key(
        "fasterrcnn_mobilenet_v3_large_320_fpn", "Name of a detector of torchvision that begins with fasterrcnn."
    )
    weights: Literal["torchvision", "file"] = key(
        "torchvision", "Weights of the detector: torchvision (downloaded) | file."
    )
    file: Place | None = key(
        None, "Weights file under weights_root, for weights: file. It is a safetensors file or a state dict."
    )
    sha256: str | None = key(None, "SHA-256 of the weights file. null accepts any file and records its SHA-256.")
    stage: Literal["detections", "rpn"] = key(
        "detections", "Output that is used as proposals: detections | rpn (the output of the region proposal network)."
    )

    _file = file_goes_with("weights")

    @field_validator("architecture")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if not DETECTORS.fullmatch(name):
            require_torchvision(name, "detector")
        return name


class RegionsSettings(Section):
    encoders: tuple[Name, ...] = key((), "Names of the image encoders that extract features of regions.")
    geometry: bool = key(False, "Whether models of regions also get the position and the size of each region.")
    proposals: Literal["boxes", "grid", "selective-search", "faster-rcnn"] = key(
        "boxes",
        "Origin of the regions: boxes (of the collection or of a file) | grid | selective-search | faster-rcnn.",
    )
    boxes: Place | None = key(
        None, "File or folder of boxes under data_root, for proposals: boxes. null uses the boxes of the collection."
    )
    count: Positive = key(
        19, "Number of regions per image, besides the whole image (Karpathy and Fei-Fei 2015, Niu et al. 2017)."
    )
    iou: Share = key(
        0.7,
        "Largest overlap (intersection over union) of two regions. If two proposals overlap more, "
        "the proposal with the lower score is dropped.",
    )
    fill: bool = key(True, "Whether to add windows of a grid if an image has fewer proposals.")
    detector: DetectorSettings = key(DetectorSettings, "Detector for proposals: faster-rcnn.")
    features: Literal["crops", "roi-align"] = key(
        "crops",
        "Features of a region: crops (each region is a separate input of the network) | roi-align "
        "(all regions are pooled from one activation map).",
    )
    crop_side: Side | None = key(
        None,
        "Side in pixels to which a region is warped, for features: crops. null uses the side of the encoder's input.",
    )
    context: Count = key(
        16, "Number of pixels of a crop, on each side, that show the surroundings of the box, for features: crops."
    )
    score: Literal["proposal", "classifier"] = key(
        "proposal", "Score by which regions are ranked: proposal | classifier (of a finetuned encoder, as in R-CNN)."
    )
    checkpoint_images: Positive = key(
        256, "Number of images between two checkpoints. A killed job repeats about this many images."
    )

    def decisive(self) -> dict[str, Any]:
        """Return the keys on which the regions and their features depend, with their values."""
        return self.model_dump(mode="json", exclude={"encoders", "boxes", "geometry", "checkpoint_images"})


class FinetuneSettings(Section):
    start: Literal["untrained", "torchvision", "file"] = key(
        "untrained", "Weights at the start: untrained (drawn from `seed`) | torchvision (downloaded) | file."
    )
    file: Place | None = key(
        None, "Weights file under weights_root, for start: file. It is a safetensors file or a state dict."
    )
    sha256: str | None = key(None, "SHA-256 of the weights file. null accepts any file and records its SHA-256.")
    splits: Annotated[tuple[Split, ...], Field(min_length=1)] = key(
        ("train", "weak"), "Splits whose labelled boxes are used."
    )
    side: Positive = key(64, "Side in pixels to which a region is warped.")
    context: Count = key(8, "Number of pixels of a crop, on each side, that show the surroundings of the box.")
    iterations: Positive = key(300, "Number of steps of gradient descent.")
    images: Positive = key(32, "Number of images per step.")
    learning_rate: AboveZero = key(
        0.03,
        "Largest learning rate. It is reached after a tenth of the iterations, and then decreases "
        "to zero by a half cosine.",
    )
    body_rate: NonNegative = key(
        0.1, "Factor on the learning rate for the weights of the network below the classifier."
    )
    precision: Precision = key("auto", "Number type: auto (bfloat16 if the hardware supports it) | float32 | bfloat16.")
    checkpoint_seconds: NonNegative = key(
        30, "Number of seconds between two checkpoints. A killed job repeats at most about this many seconds."
    )

    _file = file_goes_with("start")


class ImageViewSettings(Section):
    normalise: tuple[Literal["sqrt", "l2"], ...] | None = key(
        None,
        "Transforms of each encoder's features, in order: sqrt (signed square root) | l2 (unit "
        "length). null: [sqrt, l2] for the kinds network, standard, colours, pooled and timm, and [l2] for "
        "open_clip, transformers, imported, an inner layer of timm, and your own classes.",
    )

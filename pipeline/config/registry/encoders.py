"""The kinds of image encoder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config.registry.spec import Spec, find
from pipeline.hubs import extra_of

WIDTHS = {"squeezenet": 512, "resnet18": 512, "resnet34": 512, "mobilenet_v2": 1280, "vgg": 512, "alexnet": 256}
"""How torchvision's networks begin -> the channels that their average pooling has."""


@dataclass(frozen=True, kw_only=True)
class EncoderSpec(Spec):
    """A kind of image encoder: its class at `place`, and the class of its own settings, `section` (None: it has none),
    which are a key of its entry in a configuration.

    The class is a pipeline.images.image_encoder.ImageEncoder. `prepare(entry, material)` makes the encoder from its
    entry and an EncoderMaterial of that module. `settings()` (JSON; `architecture`, `layer` and `weights` with their
    `origin`, and `kind` if the architecture is not its name) and `tensors()` are what `from_parts(settings, tensors)`
    turns back into it. `encode(images)` maps n RGB images to (n, dim) float32, and `work(device, precision,
    batch_size)` is the Work by which many are extracted.
    """

    reads: Literal["pixels", "regions", "vectors"] = "pixels"
    """What it takes of an image; `regions`: those that another encoder, its entry's `of`, has described; `vectors`:
    features that were made elsewhere."""
    architectures: bool = False
    """Whether `architecture` says which of several it is; of all others it is the name of the kind."""
    weights: tuple[str, ...] = ()
    """What `weights` of its entry may be; nothing: it has none from elsewhere."""
    tags: bool = False
    """Whether `weights` may be a name that its library has for weights, too."""
    own_defaults: bool = False
    """Whether the model itself says what its entry does not: size, colours, interpolation and weights."""
    learned: bool = False
    """Whether it is learned from the images of the train split."""
    regions: bool = False
    """Whether it describes regions of images too."""
    check: str | None = None
    """The place of a function that raises ValueError for an entry that cannot be."""
    dim: Callable[[Any], int | None] = lambda entry: None
    """The dimension of its features by its entry, or None."""


def _network_dim(entry: Any) -> int | None:
    if entry.layer != "average":
        return 4096
    return next((width for name, width in WIDTHS.items() if entry.architecture.startswith(name)), None)


def _spec(name: str, place: str, **more: Any) -> EncoderSpec:
    return EncoderSpec(name=name, place=f"pipeline.images.{place}", **more)


def _library(name: str, place: str, **more: Any) -> EncoderSpec:
    """Networks of another library, which is an extra."""
    more = {"architectures": True, "extra": extra_of(name), "own_defaults": True, **more}
    return _spec(name, f"{name}_models:{place}", **more)


TRAINED = ("finetuned",)
"""Weights that a stage of the run makes: `finetune` on labelled boxes."""
ENCODERS: tuple[EncoderSpec, ...] = (
    _spec("network", "networks:NetworkEncoder", architectures=True, regions=True, dim=_network_dim,
          weights=("untrained", "torchvision", "file", *TRAINED),
          check="pipeline.config.architectures:check_network"),
    _spec("standard", "standard:StandardEncoder", learned=True, extra="standard",
          section="pipeline.config.schema.images:StandardSettings",
          check="pipeline.config.schema.images:check_standard",
          dim=lambda entry: sum(entry.standard.dimensions.model_dump().values())),
    _spec("pooled", "regions:PooledEncoder", reads="regions"),
    _spec("imported", "image_encoder:ImportedEncoder", reads="vectors"),
    _library("open_clip", "OpenClipEncoder", weights=("hub", "file"), tags=True),
    _library("timm", "TimmEncoder", weights=("hub", "file", "untrained")),
    _library("transformers", "TransformersEncoder", weights=("hub",)),
    _library("onnx", "OnnxEncoder", architectures=False, weights=("file",)),
)  # fmt: skip
"""The first is the kind of every architecture that is not the name of a kind."""


def encoder_spec(kind: str | None, architecture: str) -> EncoderSpec:
    """The `kind`, or where it is None the one that the architecture implies; UsageError lists the known ones."""
    if kind is not None:
        return find("kind of encoder", kind, ENCODERS)
    return next((spec for spec in ENCODERS if spec.name == architecture), ENCODERS[0])

"""Networks of other libraries as encoders: fetched by `prepare-encoder`, then restored from settings and tensors."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from pipeline.encoders.image_encoder import EncoderMaterial, ModuleEncoder
from pipeline.encoders.libraries.hubs import fetching, offline
from pipeline.errors import MALFORMED, InputError, brief
from pipeline.images.preprocess import Preprocessing

PREPROCESSING = ("resize", "crop", "mean", "std", "interpolation")


@dataclass(frozen=True)
class FetchedNetwork:
    """A library's network that describes images: its `body`, the `config` (JSON) by which it is built again without
    weights, what it says of its `preprocessing` (those of PREPROCESSING that it knows), and where it comes from."""

    body: nn.Module
    config: Mapping[str, Any]
    preprocessing: Mapping[str, Any]
    weights: Mapping[str, Any]


class LibraryEncoder(ModuleEncoder):
    """A network of another library. `config` builds it again; `weights` says where it comes from."""

    kind: ClassVar[str]

    def __init__(
        self, preprocessing: Preprocessing, body: nn.Module, about: Mapping[str, Any], config: Mapping[str, Any]
    ) -> None:
        super().__init__(preprocessing, body, about["flip"])
        self.about, self.config = about, config

    @staticmethod
    @abstractmethod
    def fetch(entry: Any, material: EncoderMaterial) -> FetchedNetwork:
        """The network of an entry, from the library's hub, or a folder or a file of weights of the user's."""

    @staticmethod
    @abstractmethod
    def build(config: Mapping[str, Any]) -> nn.Module:
        """The network without its weights. Reads no file, asks no hub and runs no code but the library's."""

    @classmethod
    def prepare(cls, entry: Any, material: EncoderMaterial) -> "LibraryEncoder":
        """Raises InputError where the network cannot be had, or takes no images."""
        with fetching(entry.name, entry.architecture, cls.kind):
            fetched = cls.fetch(entry, material)
            body = fetched.body.float().eval()
        preprocessing = choose_preprocessing(entry, fetched.preprocessing)
        about = {"architecture": entry.architecture, "layer": "output", "weights": fetched.weights, "flip": entry.flip}
        encoder = cls(preprocessing, body, about, fetched.config)
        require_vectors(encoder, entry.name)
        return encoder

    def settings(self) -> dict[str, Any]:
        own = {"preprocessing": asdict(self.preprocessing), "config": dict(self.config)}
        return {"kind": self.kind, **self.about, **own}

    def tensors(self) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in self.body.state_dict().items()}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "LibraryEncoder":
        about = {key: settings[key] for key in ("architecture", "layer", "weights", "flip")}
        with torch.random.fork_rng(devices=[]), offline():
            body = cls.build(settings["config"]).float().eval()
        body.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})
        return cls(Preprocessing.from_dict(settings["preprocessing"]), body, about, settings["config"])


def choose_preprocessing(entry: Any, own: Mapping[str, Any]) -> Preprocessing:
    """The preprocessing that the `entry` says, and in place of null that of the model's `own` configuration; geometry
    (`resize` and `crop`) is the entry's or the model's as a whole. Raises InputError for what neither says."""
    said = {name: getattr(entry, name) for name in PREPROCESSING[2:] if getattr(entry, name) is not None}
    if entry.resize is not None:
        said |= {"resize": entry.resize, "crop": entry.crop}
    chosen = {**own, **said}
    if missing := [name for name in PREPROCESSING if name not in chosen]:
        raise InputError(
            f"encoder {entry.name}: {entry.file or entry.architecture} does not say its preprocessing; give"
            f" {', '.join(missing)}"
        )
    return Preprocessing.from_dict({name: chosen[name] for name in PREPROCESSING})


def require_vectors(encoder: Any, name: str, side: int | None = None) -> None:
    """Raises InputError unless an encoder makes one finite vector of an image, of its own or another `side`."""
    side = side or encoder.preprocessing.side
    try:
        with torch.inference_mode():
            vectors = encoder(torch.zeros(2, side, side, 3, dtype=torch.uint8))
        reason = "" if vectors.ndim == 2 and len(vectors) == 2 else f"it makes {tuple(vectors.shape)} of two images"
        reason = reason or ("" if torch.isfinite(vectors).all() else "its features are not finite")
    except MALFORMED as error:
        reason = brief(error)
    if reason:
        raise InputError(
            f"encoder {name}: the model does not map images of {side} x {side} pixels to vectors ({reason}); name one"
            " that describes images, or correct resize and crop, or regions.crop_side"
        )


def only_side(size: Any) -> int:
    """The side of a square, given as a number or as two. Raises ValueError for a rectangle."""
    sides = set(size) if isinstance(size, list | tuple) else {size}
    if len(sides) != 1:
        raise ValueError(f"its input {tuple(size)} is no square")
    return int(sides.pop())

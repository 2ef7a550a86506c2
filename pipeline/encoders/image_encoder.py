"""The base class of image encoders, and the base class of image encoders that are a network."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import nn

from pipeline.compute.device import find_device
from pipeline.encoders.extraction import ExtractionPlan, Extractor, choose_plan, make_probes
from pipeline.encoders.material import EncoderMaterial, Settings, StoredEncoder
from pipeline.images.preprocess import Preprocessing, View, prepare

if TYPE_CHECKING:
    from pipeline.config.encoders import ImageEntry


class ImageEncoder(nn.Module):
    """Base class of image encoders, which map pixels (n, side, side, 3) uint8 to features (n, dim) float32.

    `preprocessing` says how an image becomes pixels. A subclass must define `forward`. This base class assumes that the
    constructor takes only `preprocessing`, and that the state dict has all weights. Any other subclass overrides
    `settings`, `tensors` and `from_parts`, which makes an encoder from the results of `settings` and `tensors`. An
    encoder of another library writes files in `save` and reads these files in `restore`.
    """

    modality: ClassVar[Literal["image"]] = "image"

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.preprocessing = preprocessing

    @property
    def dim(self) -> int:
        side = self.preprocessing.side
        with torch.inference_mode():
            return self(torch.zeros(1, side, side, 3, dtype=torch.uint8)).shape[1]

    def encode(self, images: Sequence[Image.Image]) -> np.ndarray:
        """Return the features (n, dim) float32 of n RGB images, at least one, computed on the CPU."""
        pixels = np.stack([prepare(image, self.preprocessing) for image in images])
        with torch.inference_mode():
            return self(torch.from_numpy(pixels)).numpy()

    def settings(self) -> dict[str, Any]:
        """Return the JSON settings for `from_parts`."""
        own = {"preprocessing": asdict(self.preprocessing)}
        return {"architecture": type(self).__name__, "layer": "last", "weights": {"origin": "its own"}, **own}

    def tensors(self) -> dict[str, np.ndarray]:
        return {name: value.numpy() for name, value in self.state_dict().items()}

    @classmethod
    def prepare(cls, entry: Any, material: EncoderMaterial) -> "ImageEncoder":  # Any: each kind has its own class
        """Make the encoder of `entry`, its entry in the configuration. Each kind has its own class of entries."""
        return cls(preprocessing_of(entry))

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "ImageEncoder":
        """Make an encoder from the results of `settings` and `tensors` of a stored encoder.

        Raises KeyError for a missing setting, and RuntimeError if the tensors do not fit.
        """
        encoder = cls(Preprocessing.from_dict(settings["preprocessing"]))
        encoder.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in tensors.items()})
        return encoder

    @classmethod
    def restore(cls, stored: StoredEncoder) -> "ImageEncoder":
        """Make an encoder from its stored settings and tensors, or from the files that `save` has written."""
        return cls.from_parts(stored.settings, stored.tensors)

    def save(self, folder: Path) -> None:
        """Write the files of a model of another library into the empty `folder`. This base class writes nothing."""

    def probe(self) -> tuple[torch.Tensor, ...]:
        """Return a few generated images as input tensors, for comparing precisions."""
        return (torch.from_numpy(make_probes(self.preprocessing.side)),)

    def extractor(self, device: str, precision: str, batch_size: int) -> Extractor:
        """Prepare the encoder for many images on a `device` (auto, cpu, cuda, cuda:N), in batches of `batch_size`.

        The extractor computes in float32. Subclasses may also use `precision` (auto, float32, bfloat16).
        """
        plan = ExtractionPlan(find_device(device), torch.float32, batch_size)
        return Extractor(self, plan, View(self.preprocessing))

    def optimised(self, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """Return a copy in evaluation mode on `device`, in `dtype`. This encoder is not changed."""
        return copy.deepcopy(self).eval().to(device, dtype)


AnyModule = TypeVar("AnyModule", bound=nn.Module)


def to_channels_last(module: AnyModule) -> AnyModule:
    """Convert the weights of a module in place to the memory format channels last, and return the module. Images are
    stored in this format, too."""
    return module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # not in torch's stubs


class ModuleEncoder(ImageEncoder):
    """Image encoder that normalises pixels (n, side, side, 3) uint8 and applies a network, in the dtype of the network.

    The network `body` maps normalised images (n, 3, side, side) to features (n, dim), or to maps
    (n, dim, height, width), whose spatial mean is the feature. If `flip` is true, the features of an image and of its
    mirror image are averaged.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, preprocessing: Preprocessing, body: nn.Module, flip: bool) -> None:
        super().__init__(preprocessing)
        self.body = body
        self.flip = flip
        self.dtype = next(body.parameters()).dtype
        for name in ("mean", "std"):
            values = torch.tensor(getattr(preprocessing, name)).reshape(3, 1, 1) * 255
            self.register_buffer(name, values, persistent=False)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        images = self.normalise(pixels)
        features = self._features(images)
        return (features + self._features(images.flip(3))) / 2 if self.flip else features

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """Convert pixels (n, height, width, 3) uint8 to the input (pixels / 255 - mean) / std of the network, which is
        (n, 3, height, width) in the dtype of the network."""
        return pixels.permute(0, 3, 1, 2).to(torch.float32).sub_(self.mean).div_(self.std).to(self.dtype)

    def _features(self, images: torch.Tensor) -> torch.Tensor:
        output = self.body(images)
        return output.mean((2, 3), dtype=torch.float32) if output.ndim == 4 else output.float()

    def folded(self) -> nn.Module:
        """Return a copy of the network that computes the same function, possibly in fewer operations."""
        return copy.deepcopy(self.body)

    def optimised(self, device: torch.device, dtype: torch.dtype) -> "ModuleEncoder":
        """Return a copy for fast inference on `device`, in `dtype`, with weights in channels-last format."""
        # A copy of a network by torchvision's create_feature_extractor (inner layers of timm) is in training mode, in
        # which the batch norms would depend on the batch.
        body = to_channels_last(self.folded().eval().to(dtype=dtype))
        return ModuleEncoder(self.preprocessing, body, self.flip).to(device)

    def extractor(self, device: str, precision: str, batch_size: int) -> Extractor:
        """Prepare the encoder for many images. `choose_plan` describes the arguments."""
        return Extractor(self, choose_plan(self, device, precision, batch_size), View(self.preprocessing))


def preprocessing_of(entry: "ImageEntry") -> Preprocessing:
    """Return the preprocessing of an entry of the configuration. Only its key `crop` may be None."""
    assert entry.resize is not None and entry.mean is not None and entry.std is not None and entry.interpolation
    return Preprocessing(entry.resize, entry.crop, entry.mean, entry.std, entry.interpolation)

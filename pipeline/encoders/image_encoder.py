"""The contract of image encoders, and the base of encoders that are a network."""

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
    from pipeline.config.encoders import EncoderEntry


class ImageEncoder(nn.Module):
    """Maps pixels (n, side, side, 3) uint8, made by `preprocessing`, to features (n, dim) float32.

    A subclass has `forward`. It overrides the other methods where it differs from a module that is made from
    `preprocessing` alone, and whose state is its weights. `settings` and `tensors` are what `from_parts` turns back
    into the encoder; a model of another library writes its files by `save`, and `restore` reads them.
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
        """(n, dim) float32 of RGB images, on the CPU."""
        pixels = np.stack([prepare(image, self.preprocessing) for image in images])
        with torch.inference_mode():
            return self(torch.from_numpy(pixels)).numpy()

    def settings(self) -> dict[str, Any]:
        """JSON values for `from_parts`."""
        own = {"preprocessing": asdict(self.preprocessing)}
        return {"architecture": type(self).__name__, "layer": "last", "weights": {"origin": "its own"}, **own}

    def tensors(self) -> dict[str, np.ndarray]:
        return {name: value.numpy() for name, value in self.state_dict().items()}

    @classmethod
    def prepare(cls, entry: "EncoderEntry", material: EncoderMaterial) -> "ImageEncoder":
        """Make the encoder of an entry of the configuration."""
        return cls(preprocessing_of(entry))

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "ImageEncoder":
        """Make the encoder that `settings` and `tensors` came from."""
        encoder = cls(Preprocessing.from_dict(settings["preprocessing"]))
        encoder.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in tensors.items()})
        return encoder

    @classmethod
    def restore(cls, stored: StoredEncoder) -> "ImageEncoder":
        """Make the encoder whose parts these are."""
        return cls.from_parts(stored.settings, stored.tensors)

    def save(self, folder: Path) -> None:
        """Write the files of the library of the encoder into an empty folder."""

    def probe(self) -> tuple[torch.Tensor, ...]:
        """Return the input of a few generated images, by which precisions are compared."""
        return (torch.from_numpy(make_probes(self.preprocessing.side)),)

    def extractor(self, device: str, precision: str, batch_size: int) -> Extractor:
        """Prepare the encoder for many images, `batch_size` at once, on `device` (auto, cpu, cuda, cuda:N).

        It computes in float32 unless a subclass looks at `precision`.
        """
        plan = ExtractionPlan(find_device(device), torch.float32, batch_size)
        return Extractor(self, plan, View(self.preprocessing))

    def optimised(self, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """A faster copy on `device`, in `dtype`."""
        return copy.deepcopy(self).to(device, dtype)


AnyModule = TypeVar("AnyModule", bound=nn.Module)


def to_channels_last(module: AnyModule) -> AnyModule:
    """Give the weights of a module the memory format in which pixels come."""
    return module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # not in torch's stubs


class ModuleEncoder(ImageEncoder):
    """Maps pixels (n, side, side, 3) uint8 to features (n, dim) float32, computed in the dtype of `body`.

    `body` maps normalised images (n, 3, side, side) to features (n, dim), or to maps (n, dim, height, width), whose
    mean is the feature; `flip` averages over mirror images.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, preprocessing: Preprocessing, body: nn.Module, flip: bool) -> None:
        super().__init__(preprocessing)
        self.body, self.flip = body, flip
        self.dtype = next(body.parameters()).dtype
        for name in ("mean", "std"):
            values = torch.tensor(getattr(preprocessing, name)).reshape(3, 1, 1) * 255
            self.register_buffer(name, values, persistent=False)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        images = self.normalise(pixels)
        features = self._features(images)
        return (features + self._features(images.flip(3))) / 2 if self.flip else features

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels (n, height, width, 3) uint8 to the module's input (n, 3, height, width)."""
        return pixels.permute(0, 3, 1, 2).to(torch.float32).sub_(self.mean).div_(self.std).to(self.dtype)

    def _features(self, images: torch.Tensor) -> torch.Tensor:
        output = self.body(images)
        return output.mean((2, 3), dtype=torch.float32) if output.ndim == 4 else output.float()

    def folded(self) -> nn.Module:
        """A copy of the body that computes the same, in fewer passes where it can."""
        return copy.deepcopy(self.body)

    def optimised(self, device: torch.device, dtype: torch.dtype) -> "ModuleEncoder":
        """A faster copy on `device`, in `dtype`, channels last like the pixels."""
        body = to_channels_last(self.folded().to(dtype=dtype))
        return ModuleEncoder(self.preprocessing, body, self.flip).to(device)

    def extractor(self, device: str, precision: str, batch_size: int) -> Extractor:
        """See `choose_plan`."""
        return Extractor(self, choose_plan(self, device, precision, batch_size), View(self.preprocessing))


def preprocessing_of(entry: "EncoderEntry") -> Preprocessing:
    """Return the preprocessing that an entry of the configuration states in full."""
    from pipeline.config.encoders import ImageEntry

    assert isinstance(entry, ImageEntry)
    assert entry.resize is not None and entry.mean is not None and entry.std is not None and entry.interpolation
    return Preprocessing(entry.resize, entry.crop, entry.mean, entry.std, entry.interpolation)

"""The base classes of image encoders, and the inputs for making one."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import nn

from pipeline.compute.device import find_device
from pipeline.config.stored import restore_encoder
from pipeline.encoders.extraction import ExtractionPlan, Extractor, choose_plan
from pipeline.encoders.given_vectors import require_made_by
from pipeline.foreign.files import read_weights
from pipeline.images.preprocess import Photograph, PhotographReader, Preprocessing, View, prepare


@dataclass(frozen=True)
class TrainImages:
    """The images of the train split: `rows` of the table `images`, in the manifest with the fingerprint `manifest`."""

    images: Any
    rows: np.ndarray
    manifest: str
    reader: PhotographReader

    def draw(self, count: int, seed: int) -> list[Photograph]:
        """A random sample of `count`, or all if there are fewer."""
        rows = np.random.default_rng(seed).permutation(self.rows)[:count]
        return [Photograph.from_row(row) for row in self.images.take(rows).to_pylist()]

    def describe(
        self, what: str, photographs: Sequence[Photograph], preprocessing: Preprocessing, describe: Callable
    ) -> list:
        """`describe` applied to the pixels of each photograph; `what` labels the progress bar."""
        from tqdm import tqdm

        described = self.reader.views(photographs, [View(preprocessing, describe)])
        return [view for (view,) in tqdm(described, what, len(photographs), unit=" images", disable=None)]


class GivenFeatures(NamedTuple):
    """Some RGB images, their names, and the `features` (n, dim) float32 of them that were made elsewhere."""

    images: Sequence[Image.Image]
    names: Sequence[str]
    features: np.ndarray


@dataclass(frozen=True)
class EncoderMaterial:
    """What an encoder is made from, beside its entry: the `seed`, the folder of the weights, the settings that define
    an image's `regions`, and, if its kind needs them, the `other` encoder that its entry names (its stored `settings`
    and `tensors`), the images of `train` to learn from, and some features that were `given`."""

    seed: int
    weights_root: Path
    regions: Mapping[str, Any]
    other: Any = None
    train: TrainImages | None = None
    given: GivenFeatures | None = None

    def weights(self, file: str, sha256: str | None) -> tuple[bytes, str]:
        """A file of weights, and its SHA-256, which is to be `sha256` where that is known."""
        return read_weights(self.weights_root / file, sha256)

    def folder(self, name: str) -> Path | None:
        """A folder that lies with the weights; None where there is none."""
        path = self.weights_root / name
        return path if path.is_dir() else None


class ImageEncoder(nn.Module):
    """Maps pixels (n, side, side, 3) uint8, made by `preprocessing`, to features (n, dim) float32.

    A subclass has `forward`, and of the methods that pipeline.config.registry.EncoderSpec describes those in which it
    differs from a module that is made of `preprocessing` alone, and whose state are its weights.
    """

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
    def prepare(cls, entry: Any, material: "EncoderMaterial") -> "ImageEncoder":
        """The encoder of an `entry` of the configuration."""
        return cls(Preprocessing.from_entry(entry))

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "ImageEncoder":
        """The encoder that `settings` and `tensors` came from."""
        encoder = cls(Preprocessing.from_dict(settings["preprocessing"]))
        encoder.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in tensors.items()})
        return encoder

    def extractor(self, device: str, precision: str, batch_size: int) -> Extractor:
        """Itself prepared for many images, on `device` (auto, cpu, cuda, cuda:N), `batch_size` at once; in float32
        where a subclass does not look at `precision`."""
        plan = ExtractionPlan(find_device(device), torch.float32, batch_size)
        return Extractor(self, plan, View(self.preprocessing))

    def optimised(self, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """A faster copy on `device`, in `dtype`."""
        return copy.deepcopy(self).to(device, dtype)


class ModuleEncoder(ImageEncoder):
    """Maps pixels (n, side, side, 3) uint8 to features (n, dim) float32, computed in the dtype of `body`.

    `body` maps normalised images (n, 3, side, side) to features (n, dim), or to maps (n, dim, height, width), whose
    mean is the feature; `flip` averages over mirror images.
    """

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
        body = self.folded().to(dtype=dtype, memory_format=torch.channels_last)
        return ModuleEncoder(self.preprocessing, body, self.flip).to(device)

    def extractor(self, device: str, precision: str, batch_size: int) -> Extractor:
        """See `choose_plan`."""
        return Extractor(self, choose_plan(self, device, precision, batch_size), View(self.preprocessing))


class ImportedEncoder:
    """The kind of features made elsewhere. What is stored of one is the encoder that its entry says has made them."""

    @classmethod
    def prepare(cls, entry: Any, material: EncoderMaterial) -> ImageEncoder:
        """The encoder `entry.made_by`. Raises InputError where it describes some images otherwise than was given."""
        given = material.given
        encoder = restore_encoder(material.other.settings, material.other.tensors)
        ours = encoder.encode(given.images)
        require_made_by(given.features, ours, given.names, entry.path, entry.name, entry.made_by)
        return encoder

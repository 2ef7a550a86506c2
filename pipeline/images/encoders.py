"""What all image encoders have in common, and what one is made from."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from torch import nn

from pipeline.device import find_device
from pipeline.images.decode import ImageLimits
from pipeline.images.extraction import ExtractionPlan, Extractor
from pipeline.images.preprocess import Photograph, Preprocessing, load_all, prepare


class EncoderParts(Protocol):
    """What an encoder is rebuilt from."""

    settings: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class TrainImages:
    """The images of the train split: `rows` of the table `images` of the manifest with the fingerprint `manifest`."""

    images: Any
    rows: np.ndarray
    manifest: str
    read: Callable[..., bytes]
    limits: ImageLimits
    processes: int

    def draw(self, count: int, seed: int) -> list[Photograph]:
        """`count` of them, or all where there are fewer."""
        rows = np.random.default_rng(seed).permutation(self.rows)[:count]
        return [Photograph.from_row(row) for row in self.images.take(rows).to_pylist()]

    def describe(
        self, what: str, photographs: Sequence[Photograph], preprocessing: Preprocessing, describe: Callable
    ) -> list:
        """What `describe` makes of the pixels of each; `what` names the bar."""
        from tqdm import tqdm

        made = load_all(photographs, self.read, self.limits, preprocessing, self.processes, describe)
        return list(tqdm(made, what, len(photographs), unit=" images", disable=None))


@dataclass(frozen=True)
class EncoderMaterial:
    """What an encoder is made from beside its entry: the `seed`; `regions`, the settings that decide which regions an
    image has; a file of weights by its name and SHA-256, with the latter; another encoder by its name; and the images
    to learn from."""

    seed: int
    regions: Mapping[str, Any]
    weights: Callable[[str, str | None], tuple[bytes, str]]
    encoder: Callable[[str], EncoderParts]
    train_images: Callable[[], TrainImages]


class Work(NamedTuple):
    """An encoder's work: `describe` the pixels of one picture where they are decoded (None: leave them as they are),
    and extract the features of many at once."""

    describe: Callable[[np.ndarray], np.ndarray] | None
    extractor: Extractor


class ImageEncoder(nn.Module):
    """Pixels (n, side, side, 3) uint8, as `preprocessing` makes them, to features (n, dim) float32.

    pipeline.specs.encoders.EncoderSpec says what its class has beside `forward`.
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

    def work(self, device: str, precision: str, batch_size: int) -> Work:
        """How to run it on `device` (auto, cpu, cuda, cuda:N), `batch_size` images at once, in float32 unless it says
        otherwise."""
        return Work(None, Extractor(self, ExtractionPlan(find_device(device), torch.float32, batch_size)))

    def optimised(self, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """The same encoder made fast: on `device`, in `dtype`."""
        return copy.deepcopy(self).to(device, dtype)

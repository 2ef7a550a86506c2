"""The base class of image encoders, and the inputs for making one."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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
    """What an encoder is restored from."""

    settings: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class TrainImages:
    """The images of the train split: `rows` of the table `images`, in the manifest with the fingerprint `manifest`."""

    images: Any
    rows: np.ndarray
    manifest: str
    read: Callable[..., bytes]
    limits: ImageLimits
    processes: int

    def draw(self, count: int, seed: int) -> list[Photograph]:
        """A random sample of `count`, or all if there are fewer."""
        rows = np.random.default_rng(seed).permutation(self.rows)[:count]
        return [Photograph.from_row(row) for row in self.images.take(rows).to_pylist()]

    def describe(
        self, what: str, photographs: Sequence[Photograph], preprocessing: Preprocessing, describe: Callable
    ) -> list:
        """`describe` applied to the pixels of each photograph; `what` labels the progress bar."""
        from tqdm import tqdm

        made = load_all(photographs, self.read, self.limits, preprocessing, self.processes, describe)
        return list(tqdm(made, what, len(photographs), unit=" images", disable=None))


class GivenFeatures(NamedTuple):
    """Some RGB images, their names, and the `features` (n, dim) float32 of them that were made elsewhere."""

    images: Sequence[Image.Image]
    names: Sequence[str]
    features: np.ndarray


@dataclass(frozen=True)
class EncoderMaterial:
    """The inputs for making an encoder, beside its entry: the `seed`; `regions`, the settings that define an image's
    regions; functions that return a file of weights and its SHA-256 (given its name and, if known, its SHA-256), a
    folder that lies with these by its name (None: there is none), another encoder by name, the images to learn from,
    and some images with the features that an entry names."""

    seed: int
    regions: Mapping[str, Any]
    weights: Callable[[str, str | None], tuple[bytes, str]]
    folder: Callable[[str], Path | None]
    encoder: Callable[[str], EncoderParts]
    train_images: Callable[[], TrainImages]
    given: Callable[[Any], GivenFeatures]


class Work(NamedTuple):
    """How an encoder extracts features: `describe` processes one picture's pixels in the decoding process (None:
    nothing), `extractor` batches of the results."""

    describe: Callable[[np.ndarray], np.ndarray] | None
    extractor: Extractor


class ImageEncoder(nn.Module):
    """Maps pixels (n, side, side, 3) uint8, made by `preprocessing`, to features (n, dim) float32.

    pipeline.config.registry.encoders.EncoderSpec describes the methods that a subclass has beside `forward`.
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
        """How to extract images on `device` (auto, cpu, cuda, cuda:N), `batch_size` at once; in float32 where a
        subclass does not look at `precision`."""
        return Work(None, Extractor(self, ExtractionPlan(find_device(device), torch.float32, batch_size)))

    def optimised(self, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """A faster copy on `device`, in `dtype`."""
        return copy.deepcopy(self).to(device, dtype)

"""Made-up photographs and encoders for the tests of this room."""

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from pipeline.images.preprocess import Preprocessing

if TYPE_CHECKING:  # else each worker process that a test starts would import torch
    import torch

    from pipeline.images.networks import NetworkEncoder, NetworkSpec

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_image(seed: int, size: tuple[int, int] = (90, 70)) -> Image.Image:
    """Smooth colours, as photographs have them: 8-bit RGB of `size` (width, height)."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def make_spec(
    architecture: str = "squeezenet1_1", layer: str = "average", side: int = 64, **more: object
) -> "NetworkSpec":
    from pipeline.images.networks import NetworkSpec

    return NetworkSpec(architecture, layer, Preprocessing(side, None, MEAN, STD), **{"flip": False, **more})


def make_encoder(architecture: str = "squeezenet1_1", seed: int = 0, **more: object) -> "NetworkEncoder":
    from pipeline.images.networks import untrained

    return untrained(make_spec(architecture, **more), seed)


def make_pixels(count: int, side: int = 64) -> np.ndarray:
    """(count, side, side, 3) uint8."""
    return np.stack([np.asarray(make_image(seed, (side, side))) for seed in range(count)])


def normalise(pixels: np.ndarray) -> "torch.Tensor":
    """(n, 3, side, side) float32, as one plainly writes it."""
    import torch

    scaled = (pixels.astype(np.float32) / 255 - np.float32(MEAN)) / np.float32(STD)
    return torch.from_numpy(scaled.transpose(0, 3, 1, 2).copy())

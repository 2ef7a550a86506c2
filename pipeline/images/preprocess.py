"""A photograph to the pixels that an encoder takes: the right square, the right size, still 8 bits."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from pipeline.errors import InputError
from pipeline.images.decode import ImageLimits, decode


@dataclass(frozen=True)
class Preprocessing:
    """What belongs to an encoder's weights: its input's geometry in pixels, and its channels' mean and std in [0, 1].

    The shorter side becomes `resize`, of which the central square of side `crop` remains; with `crop` None the
    whole image is squashed to a square of side `resize`.
    """

    resize: int
    crop: int | None
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def side(self) -> int:
        return self.crop or self.resize


def prepare(image: Image.Image, preprocessing: Preprocessing) -> np.ndarray:
    """(side, side, 3) uint8 of an RGB image. Resized once, from exactly the part that remains, with antialiasing."""
    width, height = image.size
    box = (0.0, 0.0, float(width), float(height))
    if preprocessing.crop is not None:
        half = min(width, height) * preprocessing.crop / preprocessing.resize / 2
        box = (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half)
    size = (preprocessing.side, preprocessing.side)
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR, box))


def load(
    read: Callable[..., bytes], limits: ImageLimits, preprocessing: Preprocessing, item: tuple[str, tuple[Any, ...]]
) -> np.ndarray:
    """(side, side, 3) uint8 of `item`: the SHA-256 that the bytes at a location must have, and that location.

    Raises InputError saying what is wrong with the image.
    """
    sha256, location = item
    data = read(*location)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise InputError("changed: its bytes are not those that were ingested")
    return prepare(decode(data, limits), preprocessing)

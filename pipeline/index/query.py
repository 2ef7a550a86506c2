"""A photograph as a query: encoded as the indexed images were."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from PIL import Image

from pipeline.images.kinds import encode_images, restore


class Parameters(Protocol):
    """What an encoder is rebuilt from."""

    settings: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]


def image_features(image: Image.Image, encoders: Mapping[str, Parameters]) -> dict[str, np.ndarray]:
    """Encoder name -> (1, dim) float32 of an RGB image."""
    restored = {name: restore(parameters.settings, parameters.tensors) for name, parameters in encoders.items()}
    return encode_image(image, restored)


def encode_image(image: Image.Image, encoders: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The same with encoders that pipeline.images.kinds has restored once for many images."""
    return {name: encode_images(encoder, [image]) for name, encoder in encoders.items()}

"""A photograph as a query: decoded and encoded as the indexed images were."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from pipeline.images.decode import ImageLimits, decode
from pipeline.images.kinds import encode_images, restore


class Parameters(Protocol):
    """What an encoder is rebuilt from."""

    settings: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]


def image_features(data: bytes, encoders: Mapping[str, Parameters], limits: ImageLimits) -> dict[str, np.ndarray]:
    """Encoder name -> (1, dim) float32 of the encoded image `data`. Raises UnreadableImage."""
    restored = {name: restore(parameters.settings, parameters.tensors) for name, parameters in encoders.items()}
    return encode_image(data, restored, limits)


def encode_image(data: bytes, encoders: Mapping[str, Any], limits: ImageLimits) -> dict[str, np.ndarray]:
    """The same with encoders that pipeline.images.kinds has restored once for many images."""
    image = decode(data, limits)
    return {name: encode_images(encoder, [image]) for name, encoder in encoders.items()}

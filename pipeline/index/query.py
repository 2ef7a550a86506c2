"""A photograph as a query: encoded as the indexed images were."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from pipeline.images.encoders import EncoderParts
from pipeline.specs.stored import restore_encoder


def image_features(image: Image.Image, encoders: Mapping[str, EncoderParts]) -> dict[str, np.ndarray]:
    """Encoder name -> (1, dim) float32 of an RGB image."""
    restored = {name: restore_encoder(parameters.settings, parameters.tensors) for name, parameters in encoders.items()}
    return encode_image(image, restored)


def encode_image(image: Image.Image, encoders: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The same with encoders that were restored once for many images."""
    return {name: encoder.encode([image]) for name, encoder in encoders.items()}

"""A photograph as a query: decoded and encoded as the indexed images were."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch

from pipeline.images.decode import ImageLimits, decode
from pipeline.images.kinds import restore
from pipeline.images.preprocess import prepare


class Parameters(Protocol):
    """What an encoder is rebuilt from."""

    settings: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]


def image_features(data: bytes, encoders: Mapping[str, Parameters], limits: ImageLimits) -> dict[str, np.ndarray]:
    """Encoder name -> (1, dim) float32 of the encoded image `data`. Raises UnreadableImage."""
    image = decode(data, limits)
    features = {}
    for name, parameters in encoders.items():
        encoder = restore(parameters.settings, parameters.tensors)
        pixels = torch.tensor(prepare(image, encoder.spec.preprocessing))[None]
        with torch.inference_mode():
            features[name] = encoder(pixels).numpy()
    return features

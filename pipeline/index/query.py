"""A photograph as a query: encoded as the indexed images were."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from pipeline.config.registry.stored import restore_encoder


class StoredEncoder:
    """The encoder `name` of a pipeline.storage.bundle.Bundle, which is read when it is opened."""

    def __init__(self, bundle: Any, name: str) -> None:
        self._bundle, self._name = bundle, name
        self.settings: Mapping[str, Any] = bundle.card["encoders"][name]

    @property
    def key(self) -> str:
        """The same for two that read the same file and have the same settings, whatever their bundles say of them."""
        about = self._bundle.about(f"encoders/{self._name}/model.safetensors")
        return f"{about['sha256']}{json.dumps(self.settings, sort_keys=True)}"

    def open(self) -> Any:
        """What has `encode`, of RGB images, (n, dim) float32."""
        return restore_encoder(self.settings, self._bundle.encoder(self._name).tensors)


def encode_image(image: Image.Image, encoders: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Encoder name -> (1, dim) float32 of an RGB image, by encoders that were opened."""
    return {name: encoder.encode([image]) for name, encoder in encoders.items()}

"""A photograph as a query: encoded as the indexed images were."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
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


class SharedEncoders:
    """Encoders of several bundles: each is opened once, when it is first needed, and the features of the last KEPT
    photographs are kept, so that several models, or another question, do not encode them again. For one thread."""

    KEPT = 64

    def __init__(self, decode: Callable[[bytes], Image.Image]) -> None:
        self._decode = decode
        self._opened: dict[str, Any] = {}
        self._features: OrderedDict[tuple[str, str], np.ndarray] = OrderedDict()

    def __call__(self, data: bytes, encoders: Mapping[str, StoredEncoder]) -> dict[str, np.ndarray]:
        """Encoder name -> (1, dim) float32 of an encoded image. Two encoders are one where their `key` is the same."""
        digest = hashlib.sha256(data).hexdigest()
        keys = {name: one.key for name, one in encoders.items()}
        missing = {key: encoders[name] for name, key in keys.items() if (digest, key) not in self._features}
        image = self._decode(data) if missing else None
        for key, one in missing.items():
            if key not in self._opened:
                self._opened[key] = one.open()
            self._features[digest, key] = self._opened[key].encode([image])
        found = {name: self._features[digest, key] for name, key in keys.items()}
        while len(self._features) > self.KEPT:
            self._features.popitem(last=False)
        return found

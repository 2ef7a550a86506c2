"""Encoders of photographs that several bundles share; they are loaded for the first photograph."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from PIL import Image

from pipeline.index.query import StoredEncoder


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

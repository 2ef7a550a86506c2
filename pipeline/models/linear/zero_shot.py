"""The registered model `zero-shot`: the space that an encoder of images and one of text share already."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pipeline.models.linear.projection import unit_rows
from pipeline.precision import require_finite


class ZeroShot:
    """Unit vectors of one encoder's features and of one text encoder's vectors, whose cosine is the score. It learns
    nothing."""

    sentence_view: ClassVar[str] = "vectors"
    metric: ClassVar[str] = "inner_product"
    multi_vector: ClassVar[bool] = False

    def __init__(self, encoder: str, text_encoder: str) -> None:
        self.encoders, self.text_encoders = (encoder,), (text_encoder,)

    def to(self, device: Any) -> "ZeroShot":
        """This model; there is nothing to compute on a device."""
        return self

    def embed_images(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, dim) float32 from `features`, encoder -> (n, dim)."""
        return _unit(self.encoders[0], features[self.encoders[0]][:])

    def embed_sentences(self, sentences: Mapping[str, Any]) -> np.ndarray:
        """(n, dim) float32 from `sentences`, text encoder -> (n, dim)."""
        return _unit(self.text_encoders[0], sentences[self.text_encoders[0]])

    def settings(self) -> dict[str, Any]:
        return {"encoder": self.encoders[0], "text_encoder": self.text_encoders[0]}

    def tensors(self) -> dict[str, np.ndarray]:
        return {}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "ZeroShot":
        return cls(**settings)


def _unit(name: str, vectors: np.ndarray) -> np.ndarray:
    """(n, dim) float32 of unit length, whatever the size of the numbers. IntegrityError where one is not finite."""
    require_finite(name, "vectors", vectors)
    return unit_rows(vectors.astype(np.float64)).astype(np.float32)

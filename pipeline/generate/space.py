"""The joint space for generators: images, sentences and words as unit vectors."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.config.registry.stored import restore
from pipeline.errors import UsageError
from pipeline.index.queries import QueryForms

if TYPE_CHECKING:
    import torch

BLOCK = 8192
"""Sentences embedded at once."""


class JointSpace:
    """The model of a bundle, on `gpu` if given. Raises UsageError if its vectors are not of unit length."""

    def __init__(self, parts: Any, gpu: "torch.device | None" = None) -> None:
        parameters = parts.model()
        self.fingerprint: str = parameters.fingerprint
        self.model: Any = restore(parts.card["registered"], parameters.settings, parameters.tensors, where=parts.folder)
        if gpu is not None:
            self.model.to(gpu)
        if self.model.metric != "inner_product":
            name = parts.card["model"]
            raise UsageError(f"{name} does not compare by cosine; give the index of a model that does, such as ncca")
        self.forms = QueryForms(parts, self.model)

    def images(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, c) of images given as encoder -> (n, its dim)."""
        return self.model.embed_images(features)

    def sentences(self, texts: Sequence[str]) -> np.ndarray:
        """(m, c) of sentences."""
        blocks = (texts[start : start + BLOCK] for start in range(0, len(texts), BLOCK))
        return np.concatenate([self.model.embed_sentences(self.forms(block)) for block in blocks])

    @cached_property
    def words(self) -> np.ndarray:
        """(V, c) of every term that the model can list, as a sentence by itself."""
        return self.sentences(self.forms.terms or [""])

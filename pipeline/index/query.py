"""A photograph as a query: encoded as the indexed images were."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from pipeline.errors import MALFORMED, IntegrityError, brief
from pipeline.images.graphs import GraphEncoder, find_opener
from pipeline.images.preprocess import Preprocessing
from pipeline.index.format import REBUILD
from pipeline.specs.stored import restore_encoder


class StoredEncoder:
    """The encoder `name` of a pipeline.storage.bundle.Bundle, by its graph where the bundle has one and a library that
    computes it is installed. It is read when it is opened."""

    def __init__(self, bundle: Any, name: str) -> None:
        self._bundle, self._name = bundle, name
        self.settings: Mapping[str, Any] = bundle.card["encoders"][name]
        self._opener = find_opener()
        tensors, graph = bundle.encoder_files(name)
        self._graph = graph if self._opener else None
        self._file = self._graph or tensors

    @property
    def key(self) -> str:
        """The same for two that read the same file and have the same settings, whatever their bundles say of them."""
        return f"{self._bundle.about(self._file)['sha256']}{json.dumps(self.settings, sort_keys=True)}"

    def open(self) -> Any:
        """What has `encode`, of RGB images, (n, dim) float32; without a graph, by torch."""
        if not self._graph:
            return restore_encoder(self.settings, self._bundle.encoder(self._name).tensors)
        try:
            preprocessing = Preprocessing.from_dict(self.settings["preprocessing"])
        except MALFORMED as error:
            raise IntegrityError(
                f"{self._bundle.folder} does not say what {self._name} does to images ({brief(error)}); {REBUILD}"
            ) from error
        data = self._bundle.read(self._graph)
        return GraphEncoder(preprocessing, data, self._bundle.folder / self._graph, self._opener)


def encode_image(image: Image.Image, encoders: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Encoder name -> (1, dim) float32 of an RGB image, by encoders that were opened."""
    return {name: encoder.encode([image]) for name, encoder in encoders.items()}

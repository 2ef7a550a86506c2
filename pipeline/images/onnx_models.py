"""ONNX files as encoders, computed by onnxruntime."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import onnx
import torch
from google.protobuf.message import DecodeError

from pipeline.errors import MALFORMED, InputError, brief
from pipeline.images.image_encoder import EncoderMaterial, ImageEncoder
from pipeline.images.libraries import choose_preprocessing, require_vectors
from pipeline.images.preprocess import Preprocessing
from pipeline.onnx_graphs import FILE, explained, open_graph, require_whole


class OnnxEncoder(ImageEncoder):
    """The graph in `data` maps images (n, 3, side, side) float32 to features (n, dim), in float32. A graph whose n is
    fixed gets that many at once."""

    def __init__(
        self, preprocessing: Preprocessing, data: bytes, weights: Mapping[str, Any], device: str = "cpu"
    ) -> None:
        super().__init__(preprocessing)
        self.data, self.weights = data, weights
        self.session = open_graph(data, device)
        (images,), (_,) = self.session.get_inputs(), self.session.get_outputs()
        self.input, self.shape = images.name, images.shape
        self.mean, self.std = (np.array(values, np.float32) * 255 for values in (preprocessing.mean, preprocessing.std))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        images = (pixels.cpu().numpy().astype(np.float32) - self.mean) / self.std
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        return torch.from_numpy(np.concatenate(list(map(self._run, self._batches(images))))[: len(images)]).float()

    def _batches(self, images: np.ndarray) -> list[np.ndarray]:
        if not isinstance(size := self.shape[0], int):
            return [images]
        filled = np.concatenate([images, np.zeros((-len(images) % size, *images.shape[1:]), np.float32)])
        return np.split(filled, len(filled) // size)

    def _run(self, images: np.ndarray) -> np.ndarray:
        with explained():
            (features,) = self.session.run(None, {self.input: images})
        return features

    def optimised(self, device: torch.device, dtype: torch.dtype) -> "OnnxEncoder":
        """On `device`, where onnxruntime can use it; always in float32."""
        return OnnxEncoder(self.preprocessing, self.data, self.weights, device.type)

    def settings(self) -> dict[str, Any]:
        geometry = {"preprocessing": asdict(self.preprocessing)}
        return {"architecture": "onnx", "layer": "output", "weights": dict(self.weights), **geometry}

    def tensors(self) -> dict[str, np.ndarray]:
        return {FILE: np.frombuffer(self.data, np.uint8)}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "OnnxEncoder":
        preprocessing = Preprocessing.from_dict(settings["preprocessing"])
        return cls(preprocessing, tensors[FILE].tobytes(), settings["weights"])

    @classmethod
    def prepare(cls, entry: Any, material: EncoderMaterial) -> "OnnxEncoder":
        """Raises InputError for a file that is no graph of one image input and one output of vectors."""
        data, sha256 = material.weights(entry.file, entry.sha256)
        weights = {"origin": entry.file, "sha256": sha256}
        try:
            require_whole(data)
            graph = onnx.load_model_from_string(data).graph
            weighed = {part.name for part in graph.initializer}
            inputs = [part for part in graph.input if part.name not in weighed]
            if len(inputs) != 1 or len(graph.output) != 1:
                raise ValueError(f"it has {len(inputs)} inputs and {len(graph.output)} outputs, not one of each")
            shape = [part.dim_value or None for part in inputs[0].type.tensor_type.shape.dim]
            if len(shape) != 4 or shape[1] not in (3, None) or shape[2] != shape[3]:
                raise ValueError(f"its input {shape} is not (n, 3, side, side)")
            geometry = {"resize": shape[2], "crop": shape[2]} if shape[2] else {}
            encoder = cls(choose_preprocessing(entry, geometry), data, weights)
        except (*MALFORMED, DecodeError) as error:
            raise InputError(
                f"{entry.file} cannot be used as an encoder ({brief(error)}); export one image input (n, 3, side, side)"
                " and one output (n, dim)"
            ) from error
        require_vectors(encoder, entry.name)
        return encoder

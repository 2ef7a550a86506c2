"""Networks as encoders: a backbone cut after a layer, its weights, and their preprocessing."""

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from pipeline.images.backbones import build, cut, find_node, fold_batch_norms
from pipeline.images.encoders import EncoderMaterial, ImageEncoder, Work
from pipeline.images.extraction import Extractor, choose_plan
from pipeline.images.preprocess import Preprocessing
from pipeline.images.weights import State, download, parse, select


@dataclass(frozen=True)
class NetworkSpec:
    """A network without its weights: `layer` is average, fc6 or fc7; `flip` averages over mirror images."""

    architecture: str
    layer: str
    preprocessing: Preprocessing
    flip: bool


class NetworkEncoder(ImageEncoder):
    """Maps pixels (n, side, side, 3) uint8 to features (n, dim) float32, computed in the dtype of `body`.

    `body` is the network up to the node `node` of its graph; `weights` says where its weights come from.
    """

    def __init__(self, spec: NetworkSpec, body: fx.GraphModule, node: str, weights: Mapping[str, Any]) -> None:
        super().__init__(spec.preprocessing)
        self.spec, self.body, self.node, self.weights = spec, body, node, weights
        self.dtype = next(body.parameters()).dtype
        for name in ("mean", "std"):
            values = torch.tensor(getattr(spec.preprocessing, name)).reshape(3, 1, 1) * 255
            self.register_buffer(name, values, persistent=False)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        images = self.normalise(pixels)
        features = self._features(images)
        return (features + self._features(images.flip(3))) / 2 if self.spec.flip else features

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels (n, height, width, 3) uint8 to the network's input (n, 3, height, width)."""
        return pixels.permute(0, 3, 1, 2).to(torch.float32).sub_(self.mean).div_(self.std).to(self.dtype)

    def _features(self, images: torch.Tensor) -> torch.Tensor:
        output = self.body(images)
        return output.mean((2, 3), dtype=torch.float32) if output.ndim == 4 else output.float()

    def optimised(self, device: torch.device, dtype: torch.dtype) -> "NetworkEncoder":
        """A faster copy on `device`, in `dtype`: batch norms folded, channels last like the pixels."""
        body = fold_batch_norms(copy.deepcopy(self.body)).to(dtype=dtype, memory_format=torch.channels_last)
        return NetworkEncoder(self.spec, body, self.node, self.weights).to(device)

    def work(self, device: str, precision: str, batch_size: int) -> Work:
        """See `choose_plan`."""
        return Work(None, Extractor(self, choose_plan(self, device, precision, batch_size)))

    def settings(self) -> dict[str, Any]:
        return {**asdict(self.spec), "node": self.node, "weights": dict(self.weights)}

    def tensors(self) -> dict[str, np.ndarray]:
        """The weights up to the layer, by their names in the whole network."""
        return {name: tensor.numpy() for name, tensor in self.body.state_dict().items()}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "NetworkEncoder":
        preprocessing = Preprocessing.from_dict(settings["preprocessing"])
        spec = NetworkSpec(settings["architecture"], settings["layer"], preprocessing, settings["flip"])
        body = cut(build(spec.architecture, seed=0), settings["node"])
        body.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})
        return cls(spec, body, settings["node"], settings["weights"])

    @classmethod
    def prepare(cls, entry: Any, material: EncoderMaterial) -> "NetworkEncoder":
        """The encoder of a configuration entry: untrained, with torchvision's weights, or with a file's."""
        spec = NetworkSpec(entry.architecture, entry.layer, Preprocessing.from_entry(entry), entry.flip)
        if entry.weights == "untrained":
            return untrained(spec, material.seed)
        if entry.weights == "torchvision":
            state, origin = download(entry.architecture)
            return trained(spec, state, {"origin": origin})
        data, sha256 = material.weights(entry.file, entry.sha256)
        return trained(spec, parse(data, entry.file), {"origin": entry.file, "sha256": sha256})


def untrained(spec: NetworkSpec, seed: int) -> NetworkEncoder:
    """An encoder with the untrained weights that its architecture draws from `seed`."""
    network = build(spec.architecture, seed)
    node = find_node(network, spec.layer, spec.preprocessing.side)
    return NetworkEncoder(spec, cut(network, node), node, {"origin": "untrained", "seed": seed})


def trained(spec: NetworkSpec, state: State, weights: Mapping[str, Any]) -> NetworkEncoder:
    """An encoder with the weights `state`, which must cover the network up to the layer.

    Raises InputError, naming their source `weights["origin"]`, if they do not fit.
    """
    network = build(spec.architecture, seed=0)
    node = find_node(network, spec.layer, spec.preprocessing.side)
    body = cut(network, node)
    body.load_state_dict(select(state, body.state_dict(), network.state_dict(), weights["origin"]))
    return NetworkEncoder(spec, body, node, weights)

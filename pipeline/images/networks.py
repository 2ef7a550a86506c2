"""Networks as encoders: a backbone cut after a layer, its weights, and their preprocessing."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from pipeline.images.backbones import build, cut, find_node, fold_batch_norms
from pipeline.images.encoders import EncoderMaterial
from pipeline.images.modules import ModuleEncoder
from pipeline.images.preprocess import Preprocessing
from pipeline.images.weights import State, download, parse, select


@dataclass(frozen=True)
class NetworkSpec:
    """A network without its weights: `layer` is average, fc6 or fc7; `flip` averages over mirror images."""

    architecture: str
    layer: str
    preprocessing: Preprocessing
    flip: bool


class NetworkEncoder(ModuleEncoder):
    """`body` is the network up to the node `node` of its graph; `weights` says where its weights come from."""

    def __init__(self, spec: NetworkSpec, body: fx.GraphModule, node: str, weights: Mapping[str, Any]) -> None:
        super().__init__(spec.preprocessing, body, spec.flip)
        self.spec, self.node, self.weights = spec, node, weights

    def folded(self) -> fx.GraphModule:
        """With batch norms folded into convolutions."""
        return fold_batch_norms(super().folded())

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

"""Image encoders that are classification networks of torchvision, cut after one of their layers."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx, nn
from torch.fx.experimental.optimization import fuse

from pipeline.encoders.image_encoder import ModuleEncoder, preprocessing_of
from pipeline.encoders.material import EncoderMaterial, Settings, WeightsOrigin
from pipeline.encoders.weights import State, feature_extraction, fetch, models, ops, parse, select
from pipeline.errors import UsageError
from pipeline.images.preprocess import Preprocessing

if TYPE_CHECKING:
    from pipeline.config.encoders import NetworkEntry

HIDDEN_LAYERS = ("fc6", "fc7")
CLASSIFIER = "rcnn/"
"""Prefix of the tensors of the region classifier that is stored with a finetuned encoder."""


def build(architecture: str, seed: int) -> nn.Module:
    """Return the whole network in evaluation mode, with weights that are drawn from `seed`.

    Raises UsageError if the installed version of torchvision does not have the architecture.
    """
    if architecture not in models.list_models():
        raise UsageError(
            f"the installed version of torchvision does not have the network {architecture!r}. Install the version"
            " with which the encoder was made."
        )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # googlenet and inception announce a new initialisation
        torch.default_generator.manual_seed(seed)
        return models.get_model(architecture, weights=None).eval()


def find_node(network: nn.Module, layer: str, side: int) -> str:
    """Return the name of the node in the network's graph whose output is `layer`, for images of `side` x `side` pixels.

    The layer `average` is the last activation map (n, channels, height, width) before the classifier. This map may
    already be pooled, and its spatial mean is the feature. `fc6` and `fc7` are the hidden layers of a classifier with
    three layers, after ReLU. For `average`, raises UsageError if the network has no activation map, or cannot take
    images of this size.
    """
    head = [name for name, child in network.named_children() if _has_parameters(child)][-1]
    graph, nodes = _trace(network)
    names = list(nodes)
    of_head = [i for i, name in enumerate(names) if name == head or name.startswith(f"{head}.")]
    if layer == "average":
        return _last_map(network, graph, {name: nodes[name] for name in names[: of_head[0]]}, side)
    linear = [i for i in of_head if isinstance(_module(network, names[i]), nn.Linear)]
    return names[linear[HIDDEN_LAYERS.index(layer)] + 1]


def cut(network: nn.Module, node: str) -> fx.GraphModule:
    """Return the part of `network` that computes the output of `node`. The part and the network share their tensors."""
    graph, nodes = _trace(network)
    return _part(network, graph, nodes[node])


def _trace(network: nn.Module) -> tuple[fx.Graph, dict[str, fx.Node]]:
    """Trace a network in evaluation mode. Return the graph, and the nodes in order by the names that torchvision gives
    them.

    torchvision's `create_feature_extractor` would trace the network twice, once for training. The constants of an
    earlier trace are deleted first, so that constants have the same names in every process.
    """
    for name in [name for name in vars(network) if name.startswith("_tensor_constant")]:
        delattr(network, name)
    leaves = [module for module in vars(ops).values() if isinstance(module, type) and issubclass(module, nn.Module)]
    tracer = feature_extraction.NodePathTracer(autowrap_modules=(math, ops), leaf_modules=leaves)
    graph = tracer.trace(network.eval())
    return graph, {name: node for node, name in tracer.node_to_qualname.items()}


def _part(network: nn.Module, graph: fx.Graph, output: fx.Node | tuple[fx.Node, ...]) -> fx.GraphModule:
    """Return the part of `network` that computes `output`, which is one or several nodes of its `graph`.

    The graph is changed: it is reduced to this part.
    """
    graph.erase_node(next(node for node in graph.nodes if node.op == "output"))
    graph.output(output)
    fx.GraphModule(network, graph).graph.eliminate_dead_code()
    return fx.GraphModule(network, graph)


def _last_map(network: nn.Module, graph: fx.Graph, nodes: Mapping[str, fx.Node], side: int) -> str:
    """Return the name of the last of `nodes` whose output is an activation map (n, channels, height, width).

    The network gets images of `side` x `side` pixels. Nodes before the last node with parameters are not considered.
    Raises UsageError if there is no such map, or if the network cannot take images of this size.
    """
    candidates = []
    for name in reversed(list(nodes)):
        candidates.append(name)
        if _has_parameters(_module(network, name)):
            break
    part = _part(network, graph, tuple(nodes[name] for name in candidates))
    try:
        with torch.inference_mode():
            outputs = part(torch.zeros(1, 3, side, side))
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"{type(network).__name__} cannot take images of {side} x {side} pixels ({reason}). Correct resize and"
            " crop."
        ) from error
    for name, output in zip(candidates, outputs, strict=True):
        if output.ndim == 4:
            return name
    raise UsageError(
        f"{type(network).__name__} does not have an activation map to average. Choose a convolutional network."
    )


def _module(network: nn.Module, name: str) -> nn.Module | None:
    """Return the submodule `name`, or None if `name` is another operation of the graph."""
    try:
        return network.get_submodule(name)
    except AttributeError:
        return None


def _has_parameters(module: nn.Module | None) -> bool:
    return module is not None and any(True for _ in module.parameters())


@dataclass(frozen=True)
class NetworkSpec:
    """The description of a network without its weights.

    `layer` is average, fc6 or fc7 (see `find_node`). If `flip` is true, the features of an image and of its mirror
    image are averaged.
    """

    architecture: str
    layer: str
    preprocessing: Preprocessing
    flip: bool


class NetworkEncoder(ModuleEncoder):
    """Image encoder with a network of torchvision.

    `body` is the network up to the node `node` of its graph, and `weights` is the origin of its weights.
    """

    body: fx.GraphModule

    def __init__(self, spec: NetworkSpec, body: fx.GraphModule, node: str, weights: WeightsOrigin) -> None:
        super().__init__(spec.preprocessing, body, spec.flip)
        self.spec = spec
        self.node = node
        self.weights = weights

    def folded(self) -> fx.GraphModule:
        """Return a copy of the body in which batch norms are folded into convolutions, so that it is faster."""
        folded = fuse(self.body)
        assert isinstance(folded, fx.GraphModule)
        return folded

    def settings(self) -> dict[str, Any]:
        return {**asdict(self.spec), "node": self.node, "weights": dict(self.weights)}

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the weights up to the layer, by their names in the whole network."""
        return {name: tensor.numpy() for name, tensor in self.body.state_dict().items()}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "NetworkEncoder":
        body = cut(build(settings["architecture"], seed=0), settings["node"])
        preprocessing = Preprocessing.from_dict(settings["preprocessing"])
        spec = NetworkSpec(settings["architecture"], settings["layer"], preprocessing, settings["flip"])
        weights = {
            name: torch.from_numpy(tensor) for name, tensor in tensors.items() if not name.startswith(CLASSIFIER)
        }
        body.load_state_dict(weights)
        return cls(spec, body, settings["node"], settings["weights"])

    @classmethod
    def prepare(cls, entry: "NetworkEntry", material: EncoderMaterial) -> "NetworkEncoder":
        """Make the encoder of an entry: untrained, with torchvision's weights, or with the weights in a file.

        Raises InputError if the weights cannot be downloaded or read, or do not fit the architecture. Raises UsageError
        if the layer is `average` and the network has no activation map, or cannot take images of the configured size.
        """
        spec = NetworkSpec(entry.architecture, entry.layer, preprocessing_of(entry), entry.flip)
        if entry.weights == "untrained":
            return untrained(spec, material.seed)
        if entry.weights == "torchvision":
            remedy = "set the encoder's `weights` to file and `file` to its name, as `init --weights FILE` does"
            state, origin = fetch(entry.architecture, material.weights_root, remedy)
            return trained(spec, state, {"origin": origin})
        assert entry.file is not None
        data, sha256 = material.weights(entry.file, entry.sha256)
        return trained(spec, parse(data, entry.file), {"origin": entry.file, "sha256": sha256})


def untrained(spec: NetworkSpec, seed: int) -> NetworkEncoder:
    """Make an encoder with untrained weights, which the initialisation of its architecture draws from `seed`.

    Raises UsageError as `build` and `find_node` do.
    """
    network = build(spec.architecture, seed)
    node = find_node(network, spec.layer, spec.preprocessing.side)
    return NetworkEncoder(spec, cut(network, node), node, {"origin": "untrained", "seed": seed})


def trained(spec: NetworkSpec, state: State, weights: WeightsOrigin) -> NetworkEncoder:
    """Make an encoder with the weights `state`, which must cover the network up to the layer.

    Raises InputError, with `weights["origin"]` as the name of the weights, if the weights do not fit the network.
    Raises UsageError as `build` and `find_node` do.
    """
    network = build(spec.architecture, seed=0)
    node = find_node(network, spec.layer, spec.preprocessing.side)
    body = cut(network, node)
    body.load_state_dict(select(state, body.state_dict(), network.state_dict(), str(weights["origin"])))
    return NetworkEncoder(spec, body, node, weights)

"""Torchvision's classification networks, cut off after one of their layers."""

import warnings

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torchvision import models
from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

from pipeline.errors import UsageError

LAYERS = ("average", "fc6", "fc7")


def require_known(architecture: str) -> None:
    """UsageError lists the known architectures."""
    known = models.list_models(module=models)
    if architecture not in known:
        raise UsageError(f"unknown architecture {architecture}; torchvision has {', '.join(known)}")


def build(architecture: str, seed: int) -> nn.Module:
    """The whole network in evaluation mode, its parameters drawn from `seed`."""
    require_known(architecture)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # googlenet and inception announce another initialisation
        torch.default_generator.manual_seed(seed)
        return models.get_model(architecture, weights=None).eval()


def find_node(network: nn.Module, layer: str, side: int) -> str:
    """The name of the node in the network's graph whose output is `layer`, for images of `side` x `side` pixels.

    `average` is the last activation map (n, channels, height, width) before the classifier, be it pooled or not:
    its mean over space is the feature. `fc6` and `fc7` are the hidden layers of a classifier of three, after ReLU.
    """
    head = [name for name, child in network.named_children() if _has_parameters(child)][-1]
    names = get_graph_node_names(network, suppress_diff_warning=True)[1]
    if layer == "average":
        return _last_map(network, names[: _first_of(names, head)], side)
    linear = [i for i, name in enumerate(names) if _of(name, head) and isinstance(_module(network, name), nn.Linear)]
    if len(linear) != 3 or layer not in LAYERS:
        raise UsageError(f"{type(network).__name__} has no layer {layer}; use average (fc6, fc7: AlexNet and VGG only)")
    return names[linear[LAYERS.index(layer) - 1] + 1]


def cut(network: nn.Module, node: str) -> fx.GraphModule:
    """The part of `network` that computes `node`, and no parameter more. Shares the network's tensors."""
    body = create_feature_extractor(network, {node: "output"}, suppress_diff_warning=True).eval()
    for output in body.graph.nodes:
        if output.op == "output":
            output.args = tuple(output.args[0].values())
    return fx.GraphModule(body, body.graph)


def fold_batch_norms(body: fx.GraphModule) -> fx.GraphModule:
    """`body` with every batch norm that follows a convolution made part of it: the same function in fewer passes."""
    body = fx.symbolic_trace(body)  # into torchvision's own blocks too, which `cut` leaves whole
    for node in list(body.graph.nodes):
        pair = [_module(body, n.target) for n in (node.args[0], node)] if _follows_a_module(node) else []
        if [type(module) for module in pair] == [nn.Conv2d, nn.BatchNorm2d]:
            convolution = node.args[0]
            parent, _, name = convolution.target.rpartition(".")
            setattr(body.get_submodule(parent), name, fuse_conv_bn_eval(*pair))
            node.replace_all_uses_with(convolution)
            body.graph.erase_node(node)
    return fx.GraphModule(body, body.graph)


def _follows_a_module(node: fx.Node) -> bool:
    if node.op != "call_module" or not isinstance(node.args[0], fx.Node):
        return False
    return node.args[0].op == "call_module" and len(node.args[0].users) == 1


def _last_map(network: nn.Module, names: list[str], side: int) -> str:
    """The last of the nodes `names` that is a map, from the last that has parameters on."""
    candidates = []
    for name in reversed(names):
        candidates.append(name)
        if _has_parameters(_module(network, name)):
            break
    extractor = create_feature_extractor(network, candidates, suppress_diff_warning=True)
    try:
        with torch.inference_mode():
            outputs = extractor(torch.zeros(1, 3, side, side))
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{type(network).__name__} cannot take images of {side} x {side} pixels: {reason}") from error
    for name in candidates:
        if outputs[name].ndim == 4:
            return name
    raise UsageError(f"{type(network).__name__} has no map of activations to average; choose a convolutional network")


def _first_of(names: list[str], head: str) -> int:
    return next(i for i, name in enumerate(names) if _of(name, head))


def _of(name: str, parent: str) -> bool:
    return name == parent or name.startswith(f"{parent}.")


def _module(network: nn.Module, name: str) -> nn.Module | None:
    """The submodule `name`; None where `name` is an operation of the graph that is not one."""
    try:
        return network.get_submodule(name)
    except AttributeError:
        return None


def _has_parameters(module: nn.Module | None) -> bool:
    return module is not None and any(True for _ in module.parameters())

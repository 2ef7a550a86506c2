"""Names of torchvision's networks, so that a misspelt one is found without the seconds that torch takes to import."""

from collections.abc import Sequence
from typing import Any

from pipeline.config.messages import suggest

NETWORKS = (
    "alexnet", "convnext_base", "convnext_large", "convnext_small", "convnext_tiny", "densenet121", "densenet161",
    "densenet169", "densenet201", "efficientnet_b0", "efficientnet_b1", "efficientnet_b2", "efficientnet_b3",
    "efficientnet_b4", "efficientnet_b5", "efficientnet_b6", "efficientnet_b7", "efficientnet_v2_l",
    "efficientnet_v2_m", "efficientnet_v2_s", "googlenet", "inception_v3", "maxvit_t", "mnasnet0_5", "mnasnet0_75",
    "mnasnet1_0", "mnasnet1_3", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "regnet_x_16gf",
    "regnet_x_1_6gf", "regnet_x_32gf", "regnet_x_3_2gf", "regnet_x_400mf", "regnet_x_800mf", "regnet_x_8gf",
    "regnet_y_128gf", "regnet_y_16gf", "regnet_y_1_6gf", "regnet_y_32gf", "regnet_y_3_2gf", "regnet_y_400mf",
    "regnet_y_800mf", "regnet_y_8gf", "resnet101", "resnet152", "resnet18", "resnet34", "resnet50",
    "resnext101_32x8d", "resnext101_64x4d", "resnext50_32x4d", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0",
    "shufflenet_v2_x1_5", "shufflenet_v2_x2_0", "squeezenet1_0", "squeezenet1_1", "swin_b", "swin_s", "swin_t",
    "swin_v2_b", "swin_v2_s", "swin_v2_t", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19",
    "vgg19_bn", "vit_b_16", "vit_b_32", "vit_h_14", "vit_l_16", "vit_l_32", "wide_resnet101_2", "wide_resnet50_2",
)  # fmt: skip
DETECTORS = (
    "fasterrcnn_mobilenet_v3_large_320_fpn", "fasterrcnn_mobilenet_v3_large_fpn", "fasterrcnn_resnet50_fpn",
    "fasterrcnn_resnet50_fpn_v2",
)  # fmt: skip
HIDDEN_LAYERS = ("alexnet", "vgg")
"""How the networks begin that have the layers fc6 and fc7."""
WITHOUT_MAPS = ("vit_",)
"""How the networks begin that have no map of activations."""


def check_network(encoder: Any) -> None:
    """ValueError names the nearest network, or says why the encoder's has no such layer. One that is not listed here is
    looked for in torchvision itself."""
    name, hidden = encoder.architecture, encoder.layer != "average"
    _require(name, "architecture", NETWORKS, "")
    if hidden and not name.startswith(HIDDEN_LAYERS):
        raise ValueError(f"{name} has no layer {encoder.layer}, only AlexNet and VGG do; set layer to average")
    if not hidden and name.startswith(WITHOUT_MAPS):
        raise ValueError(f"{name} has no map of activations to average; choose a convolutional network")


def require_detector(name: str) -> None:
    """ValueError names the nearest detector."""
    _require(name, "detector", DETECTORS, "fasterrcnn")


def _require(name: str, what: str, known: Sequence[str], beginning: str) -> None:
    if name in known:
        return
    from torchvision import models  # seconds, which only a name costs that is newer than this list, or wrong

    module = models.detection if beginning else models
    installed = [one for one in models.list_models(module=module) if one.startswith(beginning)]
    if name not in installed:
        raise ValueError(f"unknown {what} {name}; {suggest(name, installed, 'torchvision has')}")

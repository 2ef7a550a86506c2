"""Names of torchvision's networks. A name of the common ones costs no import of torch, which takes seconds."""

import re
from typing import Any

from pipeline.config.messages import suggest

COMMON = re.compile(r"(resnet(18|34|50|101|152)|mobilenet_v2|squeezenet1_[01]|alexnet|vgg1[1369](_bn)?)")
DETECTORS = re.compile(r"fasterrcnn_(resnet50_fpn(_v2)?|mobilenet_v3_large_(320_)?fpn)")
HIDDEN_LAYERS = ("alexnet", "vgg")
"""How the networks begin that have the layers fc6 and fc7."""
WITHOUT_MAPS = ("vit_",)
"""How the networks begin that have no map of activations."""


def check_network(encoder: Any) -> None:
    """ValueError names the nearest network, or says why the encoder's has no such layer."""
    name, hidden = encoder.architecture, encoder.layer != "average"
    if not COMMON.fullmatch(name):
        _require(name, "architecture")
    if hidden and not name.startswith(HIDDEN_LAYERS):
        raise ValueError(f"{name} has no layer {encoder.layer}, only AlexNet and VGG do; set layer to average")
    if not hidden and name.startswith(WITHOUT_MAPS):
        raise ValueError(f"{name} has no map of activations to average; choose a convolutional network")


def require_detector(name: str) -> None:
    """ValueError names the nearest detector."""
    if not DETECTORS.fullmatch(name):
        _require(name, "detector")


def _require(name: str, kind: str) -> None:
    from torchvision import models

    module, beginning = (models.detection, "fasterrcnn") if kind == "detector" else (models, "")
    installed = [one for one in models.list_models(module=module) if one.startswith(beginning)]
    if name not in installed:
        raise ValueError(f"unknown {kind} {name}; {suggest(name, installed, 'torchvision has')}")

"""A detector finds the same regions in TF32 as in float32.

The test on a GPU computes in TF32. The test on a CPU rounds the factors of each product as a GPU does in TF32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torchvision.models import mobilenet_v2
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import _mobilenet_extractor

from pipeline.encoders.detectors import detect
from pipeline.images.boxes import Selection, overlaps, select

PHOTOS = 8
REGIONS = Selection(iou=0.7, count=19, fill=False)
SAME_REGION = 0.9
"""Smallest overlap (intersection over union) of two regions that count as the same region."""
TF32_BITS = 10
"""Number of bits in the mantissa of a TF32 number."""
BFLOAT16_BITS = 7
"""Number of bits in the mantissa of a bfloat16 number."""


def make_detector(weights: Path, image: np.ndarray) -> FasterRCNN:
    """Return a detector with a trained MobileNetV2 and random heads.

    `weights` is the file of the trained network. The heads are scaled so that their outputs for `image` (height, width,
    3) uint8 have fixed standard deviations, about as large as in a trained detector. The backbone must be trained,
    because a network with random weights amplifies rounding errors.
    """
    torch.manual_seed(0)
    trained = mobilenet_v2()
    trained.load_state_dict(load_file(weights))
    backbone = _mobilenet_extractor(trained, fpn=True, trainable_layers=0)
    anchors = AnchorGenerator(((32, 64, 128, 256),) * 3, ((0.5, 1.0, 2.0),) * 3)
    network = FasterRCNN(
        backbone, 91, rpn_anchor_generator=anchors, min_size=320, max_size=640, box_score_thresh=0.0,
        rpn_pre_nms_top_n_test=500, rpn_post_nms_top_n_test=150,
    ).eval()  # fmt: skip
    rpn = network.rpn.head
    boxes = network.roi_heads.box_predictor
    for layer, spread in ((rpn.cls_logits, 2.0), (rpn.bbox_pred, 0.3), (boxes.cls_score, 2.0), (boxes.bbox_pred, 1.0)):
        outputs: list[torch.Tensor] = []
        handle = layer.register_forward_hook(lambda module, inputs, output, kept=outputs: kept.append(output.flatten()))
        list(detect(network, [image], torch.device("cpu"), "detections", 1))
        handle.remove()
        layer.weight.data *= spread / torch.cat(outputs).std()
    return network


@contextmanager
def rounded_products(network: nn.Module, bits: int) -> Iterator[None]:
    """Make the network round the factors of its products within the block, so that their mantissas have `bits` bits.

    The factors are the inputs and weights of convolutions and linear layers. Rounding is to nearest, ties to even.
    """

    def rounded(values: torch.Tensor) -> torch.Tensor:
        dropped = 23 - bits
        whole = values.contiguous().view(torch.int32)
        nearest = whole + (1 << (dropped - 1)) - 1 + ((whole >> dropped) & 1)
        return (nearest >> dropped << dropped).view(torch.float32)

    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    weights = [layer.weight.data for layer in layers]
    handles = [layer.register_forward_pre_hook(lambda module, inputs: (rounded(inputs[0]),)) for layer in layers]
    for layer in layers:
        layer.weight.data = rounded(layer.weight.data)
    try:
        yield
    finally:
        for layer, weight, handle in zip(layers, weights, handles, strict=True):
            layer.weight.data = weight
            handle.remove()


@pytest.mark.parametrize(
    "name", [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def test_regions_in_tf32_are_the_regions_in_float32(real_data: Path, name: str) -> None:
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    device = torch.device(name)
    files = sorted((real_data / "flickr8k/images").iterdir())[::700][:PHOTOS]
    images = [np.array(Image.open(file).convert("RGB")) for file in files]
    network = make_detector(real_data / "weights/mobilenet_v2.safetensors", images[0])

    def find(in_tf32: bool = False) -> list[np.ndarray]:
        found = detect(network, images, device, "detections", 1, in_tf32)
        return [
            select(candidates, image.shape[1::-1], REGIONS)[0].boxes[1:]
            for candidates, image in zip(found, images, strict=True)
        ]

    expected = find()

    def share(found: list[np.ndarray]) -> float:
        again = [overlaps(*pair).max(axis=1) >= SAME_REGION for pair in zip(expected, found, strict=True)]
        return float(np.concatenate(again).mean())

    assert all(len(boxes) == REGIONS.count for boxes in expected)
    if name == "cuda":
        assert share(find(in_tf32=True)) > 0.9
        return
    with rounded_products(network, TF32_BITS):
        assert share(find()) > 0.9
    with rounded_products(network, BFLOAT16_BITS):
        assert share(find()) < 0.8, "the test does not notice rounding"

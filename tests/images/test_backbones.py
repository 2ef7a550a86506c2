"""The last activation map that is found for every architecture is compared with a list of modules written by hand."""

import pytest
import torch
from pictures import make_pixels, normalise
from torch import nn
from torch.fx.experimental.optimization import fuse
from torchvision.models import VisionTransformer

from pipeline.encoders.networks import build, cut, find_node
from pipeline.errors import UsageError

PARTS = {
    "squeezenet1_1": ("features", 512),
    "mobilenet_v3_small": ("features", 576),
    "densenet121": ("features relu", 1024),
    "resnet18": ("conv1 bn1 relu maxpool layer1 layer2 layer3 layer4", 512),
    "regnet_x_400mf": ("stem trunk_output", 400),
    "shufflenet_v2_x0_5": ("conv1 maxpool stage2 stage3 stage4 conv5", 1024),
    "mnasnet0_5": ("layers", 1280),
}
"""Architecture -> the names of the modules that compute the last activation map, in order and separated by spaces, and
the number of channels of this map."""


@pytest.mark.parametrize("architecture", PARTS)
def test_average_is_the_mean_of_the_last_map_and_folding_batch_norms_changes_nothing(architecture: str) -> None:
    parts, dim = PARTS[architecture]
    network = build(architecture, seed=1)
    generator = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.running_mean, module.running_var, module.weight.data, module.bias.data):
                values.uniform_(0.5, 1.5, generator=generator)
    body = cut(network, find_node(network, "average", 64))
    images = normalise(make_pixels(2))
    folded = fuse(body)
    with torch.inference_mode():
        output = body(images)
        after = folded(images)
        last = images
        for part in parts.split():
            last = getattr(network, part, torch.relu)(last)
        expected = last.mean((2, 3))
    assert expected.shape == (2, dim)
    torch.testing.assert_close(output.mean((2, 3)), expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())
    torch.testing.assert_close(after, output, rtol=1e-4, atol=1e-4 * output.abs().max().item())
    left = sum(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert left == (62 if architecture == "densenet121" else 0)


def test_hidden_layers_of_alexnet_come_after_relu_and_without_dropout() -> None:
    network = build("alexnet", seed=0)
    images = normalise(make_pixels(2))
    with torch.inference_mode():
        flat = network.avgpool(network.features(images)).flatten(1)
        for layer, depth in (("fc6", 3), ("fc7", 6)):
            output = cut(network, find_node(network, layer, 64))(images)
            torch.testing.assert_close(output, network.classifier[:depth](flat))
            assert output.shape == (2, 4096) and output.min() == 0
    with pytest.raises(UsageError, match="AlexNet cannot take images of 16 x 16 pixels"):
        find_node(network, "average", 16)
    with pytest.raises(UsageError, match="VisionTransformer does not have an activation map to average"):
        find_node(VisionTransformer(64, 32, num_layers=1, num_heads=1, hidden_dim=8, mlp_dim=8), "average", 64)

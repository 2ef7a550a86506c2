"""One rule finds the layer of every architecture; checked against the networks' own parts, written out by hand."""

import pytest
import torch
from pictures import make_pixels, normalise
from torch import nn

from pipeline.errors import UsageError
from pipeline.images.networks import build, cut, find_node


def globally(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return network.features(images)


def densely(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return torch.relu(network.features(images))


def residually(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    x = network.maxpool(network.relu(network.bn1(network.conv1(images))))
    return network.layer4(network.layer3(network.layer2(network.layer1(x))))


def by_trunk(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return network.trunk_output(network.stem(images))


def by_shuffling(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    x = network.maxpool(network.conv1(images))
    return network.conv5(network.stage4(network.stage3(network.stage2(x))))


def by_layers(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return network.layers(images)


AVERAGES = {
    "squeezenet1_1": (globally, 512),
    "mobilenet_v3_small": (globally, 576),
    "densenet121": (densely, 1024),
    "resnet18": (residually, 512),
    "regnet_x_400mf": (by_trunk, 400),
    "shufflenet_v2_x0_5": (by_shuffling, 1024),
    "mnasnet0_5": (by_layers, 1280),
}


@pytest.mark.parametrize("architecture", AVERAGES)
def test_average_is_the_mean_of_the_last_map(architecture: str) -> None:
    by_hand, dim = AVERAGES[architecture]
    network = build(architecture, seed=1)
    images = normalise(make_pixels(2))
    with torch.inference_mode():
        output = cut(network, find_node(network, "average", 64))(images)
        expected = by_hand(network, images).mean((2, 3))
    assert expected.shape == (2, dim)
    torch.testing.assert_close(output.mean((2, 3)), expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())


@pytest.mark.parametrize(("layer", "depth"), [("fc6", 3), ("fc7", 6)])
def test_hidden_layers_of_alexnet_come_after_relu_and_without_dropout(layer: str, depth: int) -> None:
    network = build("alexnet", seed=0)
    images = normalise(make_pixels(2))
    with torch.inference_mode():
        output = cut(network, find_node(network, layer, 64))(images)
        flat = network.avgpool(network.features(images)).flatten(1)
        torch.testing.assert_close(output, network.classifier[:depth](flat))
    assert output.shape == (2, 4096) and output.min() == 0


def test_a_network_without_a_map_of_such_images_is_refused() -> None:
    with pytest.raises(UsageError, match="AlexNet cannot take images of 16 x 16 pixels"):
        find_node(build("alexnet", seed=0), "average", 16)
    with pytest.raises(UsageError, match="VisionTransformer has no map of activations to average"):
        find_node(build("vit_b_32", seed=0), "average", 224)

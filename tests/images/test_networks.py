"""Encoders against the plain loop that they stand for."""

import json

import numpy as np
import pytest
import torch
from pictures import make_encoder, make_pixels, normalise

from pipeline.images.networks import NetworkEncoder, build


def encode(encoder: NetworkEncoder, pixels: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return encoder(torch.from_numpy(pixels)).numpy()


def test_features_are_those_of_the_plain_loop() -> None:
    pixels, network = make_pixels(3), build("squeezenet1_1", seed=0)
    with torch.inference_mode():
        expected = network.features(normalise(pixels)).mean((2, 3)).numpy()
    np.testing.assert_allclose(encode(make_encoder(), pixels), expected, rtol=1e-5, atol=1e-5)


def test_flipping_averages_over_the_mirror_image() -> None:
    pixels = make_pixels(2)
    plain = make_encoder()
    expected = (encode(plain, pixels) + encode(plain, pixels[:, :, ::-1].copy())) / 2
    np.testing.assert_allclose(encode(make_encoder(flip=True), pixels), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ["squeezenet1_1", "mobilenet_v3_small"])
def test_parts_rebuild_the_encoder(architecture: str) -> None:
    encoder, pixels = make_encoder(architecture, seed=4, flip=True), make_pixels(2)
    settings = json.loads(json.dumps(encoder.settings()))
    again = NetworkEncoder.from_parts(settings, encoder.tensors())
    assert again.spec == encoder.spec and again.settings() == encoder.settings()
    assert np.array_equal(encode(again, pixels), encode(encoder, pixels))
    assert settings["weights"] == {"origin": "untrained", "seed": 4}

"""Tests which show that a hostile configuration of a network from another library is refused, and an honest one
accepted.
"""

from typing import Any

import pytest

from pipeline.encoders.libraries.folder import require_plain_config

HONEST = {
    "model_type": "clip", "projection_dim": 512, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
    "text_config": {"vocab_size": 250_880, "num_hidden_layers": 24, "bos_token_id": 49406, "max_length": 77},
    "vision_config": {"image_size": 336, "depths": [2, 2, 18, 2], "use_pretrained_backbone": False},
    "timm_model_name": "vit_base_patch16_siglip_224", "timm_model_pretrained": False, "backbone": None,
}  # fmt: skip


def test_configurations_of_real_networks_are_accepted() -> None:
    require_plain_config(HONEST)


@pytest.mark.parametrize("deep", [0, 1, 3])
@pytest.mark.parametrize(
    "part",
    [
        {"timm_model_name": "local-dir:/etc"}, {"name": "hf-hub:someone/net"}, {"place": ["LOCAL-DIR:x"]},
        {"auto_map": {"AutoModel": "code.Model"}}, {"model_type": "timm_backbone"}, {"backbone": "someone/net"},
        {"use_timm_backbone": True}, {"use_pretrained_backbone": True}, {"num_hidden_layers": 10**6},
        {"hidden_size": 10**9}, {"hf_model_name": "someone/net"},
    ],
)  # fmt: skip
def test_a_network_inside_another_is_refused_however_deep(deep: int, part: dict[str, Any]) -> None:
    config: dict[str, Any] = part
    for _ in range(deep):
        config = {"backbone_config": [config], "hidden_size": 8}
    with pytest.raises(ValueError, match="the key |names"):
        require_plain_config({**HONEST, **config})

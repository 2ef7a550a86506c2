"""The image sides of OpenCLIP's models as encoders."""

from collections.abc import Mapping
from typing import Any

import open_clip
import torch
from open_clip.model import _build_vision_tower
from torch import nn

from pipeline.encoders.image_encoder import EncoderMaterial
from pipeline.encoders.libraries.hubs import OPEN_CLIP_HUB, open_clip_config, own_folder, require_plain_config
from pipeline.encoders.libraries.image_networks import FetchedNetwork, LibraryEncoder, only_side
from pipeline.encoders.weights import parse


class ImageTower(nn.Module):
    """An image side, whose vector is all that it returns."""

    def __init__(self, visual: nn.Module) -> None:
        super().__init__()
        self.visual = visual

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output = self.visual(images)
        return output[0] if isinstance(output, tuple) else output


class OpenClipEncoder(LibraryEncoder):
    kind = "open_clip"

    @staticmethod
    def fetch(entry: Any, material: EncoderMaterial) -> FetchedNetwork:
        folder, weights = own_folder(entry.architecture, material.folder)
        name, tag = entry.architecture, entry.weights
        if folder or name.startswith(OPEN_CLIP_HUB):
            name = f"local-dir:{folder}" if folder else name
            model = open_clip.create_model(name, require_pretrained=True)
        elif tag == "file":
            data, sha256 = material.weights(entry.file, entry.sha256)
            model = open_clip.create_model(name, load_weights=False)
            model.load_state_dict(parse(data, entry.file))
            weights = {"origin": entry.file, "sha256": sha256}
        elif tag == "hub":
            tags = ", ".join(open_clip.list_pretrained_tags_by_model(name)) or "none"
            raise ValueError(f"name in weights which of its pretrained weights are meant: {tags}")
        else:
            model, weights = open_clip.create_model(name, pretrained=tag), {"origin": f"{name}, {tag}"}
        cfg = open_clip_config(folder, entry.architecture)
        quick = any(isinstance(module, open_clip.transformer.QuickGELU) for module in model.visual.modules())
        config = {"embed_dim": cfg["embed_dim"], "vision": cfg["vision_cfg"], "quick_gelu": quick}
        return FetchedNetwork(ImageTower(model.visual), config, _preprocessing(model.visual.preprocess_cfg), weights)

    @staticmethod
    def build(config: Mapping[str, Any]) -> nn.Module:
        vision = {**config["vision"], "timm_model_pretrained": False}
        require_plain_config(vision)
        return ImageTower(_build_vision_tower(config["embed_dim"], vision, config["quick_gelu"]))


def _preprocessing(cfg: Mapping[str, Any]) -> dict[str, Any]:
    side, mode = only_side(cfg["size"]), cfg["resize_mode"]
    if mode not in ("shortest", "squash"):
        raise ValueError(f"its resize_mode {mode} is not known here")
    crop = side if mode == "shortest" else None
    return {"resize": side, "crop": crop, **{key: cfg[key] for key in ("mean", "std", "interpolation")}}

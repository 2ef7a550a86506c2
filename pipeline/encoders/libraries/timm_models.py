"""Networks of timm as encoders: what they compute before their classifier."""

from collections.abc import Mapping
from typing import Any

import timm
import torch
from torch import nn

from pipeline.encoders.image_encoder import EncoderMaterial
from pipeline.encoders.libraries.hubs import own_folder, require_plain_config
from pipeline.encoders.libraries.image_networks import FetchedNetwork, LibraryEncoder, only_side
from pipeline.encoders.weights import parse, select


class TimmEncoder(LibraryEncoder):
    kind = "timm"

    @staticmethod
    def fetch(entry: Any, material: EncoderMaterial) -> FetchedNetwork:
        folder, weights = own_folder(entry.architecture, material.folder)
        name = f"local-dir:{folder}" if folder else entry.architecture
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(material.seed)
            body = timm.create_model(name, pretrained=entry.weights == "hub", num_classes=0)
        if entry.weights == "file":
            data, sha256 = material.weights(entry.file, entry.sha256)
            state, whole = parse(data, entry.file), timm.create_model(name, pretrained=False).state_dict()
            body.load_state_dict(select(state, body.state_dict(), whole, entry.file))
            weights = {"origin": entry.file, "sha256": sha256}
        elif entry.weights == "untrained":
            weights = {"origin": "untrained", "seed": material.seed}
        arguments = {key: value for key, value in getattr(body, "_model_args", {}).items() if key != "num_classes"}
        config = {"name": body.pretrained_cfg["architecture"], "arguments": arguments}
        return FetchedNetwork(body, config, _preprocessing(body), weights)

    @staticmethod
    def build(config: Mapping[str, Any]) -> nn.Module:
        if not timm.is_model(name := config["name"]):  # which could name a hub, or a folder
            raise ValueError(f"timm has no model {name}")
        require_plain_config(config["arguments"])
        untrained = {
            "pretrained": False,
            "pretrained_cfg": None,
            "pretrained_cfg_overlay": None,
            "checkpoint_path": None,
        }
        return timm.create_model(name, **untrained, num_classes=0, **config["arguments"])


def _preprocessing(body: nn.Module) -> dict[str, Any]:
    data = timm.data.resolve_data_config({}, model=body)
    side = only_side(data["input_size"][1:])
    if data["crop_mode"] not in ("center", "squash"):
        raise ValueError(f"its crop_mode {data['crop_mode']} is not known here")
    geometry = {"resize": side, "crop": None}
    if data["crop_mode"] == "center":
        geometry = {"resize": int(side / data["crop_pct"]), "crop": side}
    return {**geometry, **{key: data[key] for key in ("mean", "std", "interpolation")}}

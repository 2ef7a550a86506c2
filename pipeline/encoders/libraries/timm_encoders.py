"""Image encoders that are networks of timm. Their features are the input of the classifier, or the output of an
inner layer."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import timm
import torch
from torch import nn

from pipeline.encoders.libraries.folder import read_config
from pipeline.encoders.libraries.library_encoders import FetchedImages, LibraryImages, only_side, user_folder
from pipeline.encoders.material import EncoderMaterial, Settings
from pipeline.encoders.weights import parse, select

if TYPE_CHECKING:
    from pipeline.config.encoders import TimmEntry

WEIGHTS = "model.safetensors"


class InnerLayer(nn.Module):
    """The network `whole` up to the module with the name `layer`.

    This part maps images (n, 3, side, side) to the output of `layer`: activation maps (n, channels, height, width) or
    vectors (n, dim). If `layer` returns tokens (n, tokens, dim), the vector is the mean of the tokens.
    """

    def __init__(self, whole: nn.Module, layer: str) -> None:
        """Cut the network. Raises ValueError if the network has no such layer, or if an operation cannot be traced."""
        super().__init__()
        self.whole = whole
        # Swin transformers, for example, return maps with the channels last.
        self.channels_last = getattr(whole, "output_fmt", "NCHW") == "NHWC"
        self.inner = timm.models.create_feature_extractor(whole.eval(), {layer: "features"})

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output = self.inner(images)["features"]
        if self.channels_last and output.ndim == 4 and output.shape[1] == output.shape[2]:
            output = output.movedim(3, 1)
        return output.mean(dim=1) if output.ndim == 3 else output


class TimmImages(LibraryImages):
    """Image encoder with a network of timm, without its classifier. timm's function `save_for_hf` saves the network."""

    kind = "timm"

    @staticmethod
    def fetch(entry: "TimmEntry", material: EncoderMaterial) -> FetchedImages:
        folder, weights = user_folder(entry, material)
        name = f"local-dir:{folder}" if folder else entry.architecture
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(material.seed)
            body = timm.create_model(name, pretrained=entry.weights == "hub", num_classes=0)
        if entry.file is not None:
            data, sha256 = material.weights(entry.file, entry.sha256)
            state = parse(data, entry.file)
            whole = timm.create_model(name, pretrained=False).state_dict()
            body.load_state_dict(select(state, body.state_dict(), whole, entry.file))
            weights = {"origin": entry.file, "sha256": sha256}
        elif entry.weights == "untrained":
            weights = {"origin": "untrained", "seed": material.seed}
        preprocessing = read_preprocessing(body)
        if entry.layer is None:
            return FetchedImages(body, preprocessing, weights)
        return FetchedImages(InnerLayer(body, entry.layer), preprocessing, weights, {"layer": entry.layer})

    def save(self, folder: Path) -> None:
        whole = self.body.whole if isinstance(self.body, InnerLayer) else self.body
        timm.models.save_for_hf(whole, folder, safe_serialization=True)

    @staticmethod
    def load(folder: Path, about: Settings) -> nn.Module:
        config = read_config(folder, "config.json")
        if not isinstance(config, dict) or not timm.is_model(name := str(config["architecture"])):
            raise ValueError("the config.json of the model does not name a network of timm in `architecture`")
        arguments = config.get("model_args") or {}
        if not isinstance(arguments, dict):
            raise ValueError("model_args in the config.json of the model must be a mapping")
        plain = {"pretrained": False, "pretrained_cfg": None, "pretrained_cfg_overlay": None, "checkpoint_path": None}
        if repeated := plain.keys() & arguments.keys():
            raise ValueError(f"model_args in the config.json of the model set {min(repeated)}, which is not allowed")
        body = timm.create_model(name, **plain, **{**arguments, "num_classes": 0})
        body.load_state_dict(safetensors.torch.load_file(folder / WEIGHTS))
        return body if about.get("layer", "output") == "output" else InnerLayer(body, about["layer"])


def read_preprocessing(body: nn.Module) -> dict[str, Any]:
    """Return the preprocessing that timm states for a network, by the keys resize, crop, mean, std and interpolation of
    `Preprocessing`.

    Sides are in pixels, and `crop` is None if images are squashed to a square. Raises ValueError if the images are not
    square, or if the crop_mode is neither center nor squash.
    """
    data = timm.data.resolve_data_config({}, model=body)
    side = only_side(data["input_size"][1:])
    if data["crop_mode"] not in ("center", "squash"):
        raise ValueError(f"the crop_mode {data['crop_mode']} of the model is not supported")
    geometry = {"resize": side, "crop": None}
    if data["crop_mode"] == "center":
        geometry = {"resize": int(side / data["crop_pct"]), "crop": side}
    return {**geometry, **{key: data[key] for key in ("mean", "std", "interpolation")}}

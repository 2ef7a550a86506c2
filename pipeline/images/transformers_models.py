"""Networks of Hugging Face's transformers as encoders: CLIP, SigLIP, DINOv2, ViT, ConvNeXt and others."""

from collections.abc import Mapping
from typing import Any

import torch
from PIL import Image
from torch import nn
from transformers import AutoImageProcessor

from pipeline.hubs import own_folder
from pipeline.hugging_face import build_model, config_of, fetch_model, remove, remove_unused, require_weights
from pipeline.images.encoders import EncoderMaterial
from pipeline.images.libraries import FetchedNetwork, LibraryEncoder, only_side


class ImageFeatures(nn.Module):
    """The image's vector in the shared space of a model of images and text; of a model of images alone the pooled
    output, or the first token's where `pooled` is false."""

    def __init__(self, model: nn.Module, pooled: bool) -> None:
        super().__init__()
        self.model, self.pooled = model, pooled

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if hasattr(self.model, "get_image_features"):
            found = self.model.get_image_features(pixel_values=images)
            return found if isinstance(found, torch.Tensor) else found.pooler_output
        found = self.model(pixel_values=images)
        pooled = found.pooler_output if self.pooled else found.last_hidden_state[:, 0]
        return pooled.flatten(1)


class TransformersEncoder(LibraryEncoder):
    kind = "transformers"

    @staticmethod
    def fetch(entry: Any, material: EncoderMaterial) -> FetchedNetwork:
        folder, weights = own_folder(entry.architecture, material.folder)
        place = folder or entry.architecture
        model, missing = fetch_model(place)
        require_weights(missing)
        pooled = not missing and _has_pooler(model)
        preprocessing = _preprocessing(AutoImageProcessor.from_pretrained(place, trust_remote_code=False).to_dict())
        body, side = ImageFeatures(model, pooled), preprocessing["crop"] or preprocessing["resize"]
        unused = remove_unused(body, lambda: body(torch.zeros(1, 3, side, side)))
        if commit := getattr(model.config, "_commit_hash", None):
            weights["commit"] = commit
        config = {"model": config_of(model), "pooled": pooled, "unused": unused}
        return FetchedNetwork(body, config, preprocessing, weights)

    @staticmethod
    def build(config: Mapping[str, Any]) -> nn.Module:
        body = ImageFeatures(build_model(config["model"]), config["pooled"])
        remove(body, config["unused"])
        return body


def _has_pooler(model: nn.Module) -> bool:
    """Whether it is said to pool: a vision transformer without a pooling layer returns None for it."""
    return not hasattr(model, "pooler") or model.pooler is not None


def _preprocessing(processor: Mapping[str, Any]) -> dict[str, Any]:
    """What an image processor says of itself, in our words."""
    size, crop = processor["size"], processor.get("crop_size") if processor.get("do_center_crop") else None
    if "shortest_edge" in size:
        resize = int(size["shortest_edge"])
        if "crop_pct" in processor and not crop:  # ConvNeXt's
            resize, crop = int(resize / processor["crop_pct"]), {"height": resize, "width": resize}
    else:
        resize = only_side([size["height"], size["width"]])
    side = only_side([crop["height"], crop["width"]]) if crop else None
    if side is None and "shortest_edge" in size:
        raise ValueError("its images keep their shape, and are no squares")
    normalised = processor.get("do_normalize", True)
    return {
        "resize": resize,
        "crop": side,
        "mean": tuple(processor["image_mean"]) if normalised else (0, 0, 0),
        "std": tuple(processor["image_std"]) if normalised else (1, 1, 1),
        "interpolation": Image.Resampling(processor["resample"]).name.lower(),
    }

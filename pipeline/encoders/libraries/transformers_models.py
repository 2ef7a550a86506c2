"""Networks of Hugging Face's transformers as encoders: CLIP, SigLIP, DINOv2, ViT, ConvNeXt and others."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from transformers import AutoImageProcessor

from pipeline.encoders.image_encoder import EncoderMaterial
from pipeline.encoders.libraries.hubs import own_folder
from pipeline.encoders.libraries.hugging_face import (
    build_model,
    config_of,
    fetch_model,
    remove,
    remove_unused,
    require_weights,
)
from pipeline.encoders.libraries.image_networks import PREPROCESSING, FetchedNetwork, LibraryEncoder, only_side
from pipeline.errors import InputError, brief
from pipeline.images.preprocess import Preprocessing, prepare

SQUASHED = 384
"""The side from which ConvNeXt's processor squashes an image whole; below it the middle is cut out."""
WIDTH, HEIGHT = 400, 300
"""Of the picture by which two kinds of preprocessing are compared, whose colours change evenly over it."""
TOLERANCE = 2 / 255
"""Of rounding, beside a shift by a pixel; another crop, scale or order of channels makes 0.06 and more."""


class ImageFeatures(nn.Module):
    """The image's vector in the shared space of a model of images and text; of a model of images alone the pooled
    output, or the first token's where `pooled` is false."""

    def __init__(self, model: nn.Module, pooled: bool) -> None:
        super().__init__()
        self.model, self.pooled = model, pooled

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if hasattr(self.model, "get_image_features"):
            output = self.model.get_image_features(pixel_values=images)
            return output if isinstance(output, torch.Tensor) else output.pooler_output
        output = self.model(pixel_values=images)
        pooled = output.pooler_output if self.pooled else output.last_hidden_state[:, 0]
        return pooled.flatten(1)


class TransformersEncoder(LibraryEncoder):
    kind = "transformers"

    @staticmethod
    def fetch(entry: Any, material: EncoderMaterial) -> FetchedNetwork:
        folder, weights = own_folder(entry.architecture, material.folder)
        place = folder or entry.architecture
        model, missing = fetch_model(place)
        require_weights(missing)
        # A vision transformer without a pooling layer has None for it.
        pooled = not missing and getattr(model, "pooler", True) is not None
        stated = {name: getattr(entry, name) for name in PREPROCESSING}
        preprocessing = stated
        if None in [value for name, value in stated.items() if name != "crop"]:
            preprocessing = _own_preprocessing(place, entry.name)
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


def _own_preprocessing(place: Any, name: str) -> dict[str, Any]:
    """That of the model at `place`. Raises InputError where it cannot be said as ours is."""
    processor = AutoImageProcessor.from_pretrained(place, trust_remote_code=False)
    try:
        preprocessing = _preprocessing(processor.to_dict())
        _require_same(processor, preprocessing)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"encoder {name}: the model's images are not resized, cropped and normalised as ours are ({brief(error)});"
            " take another model, or give resize, crop, mean, std and interpolation yourself"
        ) from error
    return preprocessing


def _require_same(processor: Any, preprocessing: Mapping[str, Any]) -> None:
    """Raises ValueError unless `preprocessing` makes of a picture what the library's own `processor` makes."""
    across, down = np.meshgrid(np.linspace(0, 255, WIDTH), np.linspace(0, 255, HEIGHT))
    picture = Image.fromarray(np.stack([across, down, 255 - (across + down) / 2], axis=2).round().astype(np.uint8))
    mean, std = np.array(preprocessing["mean"]), np.array(preprocessing["std"])
    ours = (prepare(picture, Preprocessing.from_dict(preprocessing)) / 255 - mean) / std
    theirs = np.asarray(processor(images=picture, return_tensors="pt")["pixel_values"])
    if theirs.shape != (1, 3, *ours.shape[:2]):
        raise ValueError(f"{type(processor).__name__} makes {theirs.shape} where {ours.shape[:2]} is expected")
    apart = (np.abs(theirs[0].transpose(1, 2, 0) - ours) * std).max()
    if not apart < TOLERANCE + 1 / preprocessing["resize"]:
        raise ValueError(f"{type(processor).__name__} makes pixels that differ by {apart:.2f} of their range")


def _preprocessing(processor: Mapping[str, Any]) -> dict[str, Any]:
    """What an image processor says of itself, in our words, as far as we have any."""
    size, cut = processor["size"], processor.get("crop_size") if processor.get("do_center_crop") else None
    crop, share = only_side([cut["height"], cut["width"]]) if cut else None, processor.get("crop_pct")
    if "shortest_edge" in size:
        resize = int(size["shortest_edge"])
        if crop is None and not share:
            raise ValueError("its images keep their shape, and are no squares")
        if crop is not None or resize < SQUASHED:
            resize, crop = int(resize / (share or 1)), crop or resize
    else:
        resize = only_side([size["height"], size["width"]])
        crop = None if crop == resize else crop  # squashed, then cut
    normalised = processor.get("do_normalize", True)
    return {
        "resize": resize,
        "crop": crop,
        "mean": tuple(processor["image_mean"]) if normalised else (0, 0, 0),
        "std": tuple(processor["image_std"]) if normalised else (1, 1, 1),
        "interpolation": Image.Resampling(processor["resample"]).name.lower(),
    }

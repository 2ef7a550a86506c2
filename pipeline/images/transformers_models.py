"""Networks of Hugging Face's transformers as encoders: CLIP, SigLIP, DINOv2, ViT, ConvNeXt and others."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import nn
from transformers import AutoConfig, AutoImageProcessor, AutoModel

from pipeline.images.encoders import EncoderMaterial
from pipeline.images.libraries import FetchedNetwork, LibraryEncoder, only_side, own_folder

FOREIGN = ("auto_map", "quantization_config", "attn_implementation", "_attn_implementation", "_name_or_path", "dtype")
"""Keys of a configuration that name code, kernels or places of others."""


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
        folder, weights = own_folder(entry, material)
        place = folder or entry.architecture
        safe = {"use_safetensors": True, "trust_remote_code": False, "attn_implementation": "sdpa"}
        model, loading = AutoModel.from_pretrained(place, **safe, output_loading_info=True)
        missing = sorted(loading["missing_keys"])
        pooled = not any(name.startswith("pooler.") for name in missing) and _has_pooler(model)
        if lost := [name for name in missing if not name.startswith("pooler.")]:
            raise ValueError(f"its weights lack {lost[0]}")
        processor = AutoImageProcessor.from_pretrained(place, trust_remote_code=False).to_dict()
        preprocessing = _preprocessing(processor)
        body = ImageFeatures(model.float().eval(), pooled)
        unused = list(_unused(body, preprocessing["crop"] or preprocessing["resize"]))
        _remove(body, unused)
        values = {key: value for key, value in model.config.to_dict().items() if key not in FOREIGN}
        if commit := getattr(model.config, "_commit_hash", None):
            weights["commit"] = commit
        return FetchedNetwork(body, {"model": values, "pooled": pooled, "unused": unused}, preprocessing, weights)

    @staticmethod
    def build(config: Mapping[str, Any]) -> nn.Module:
        values = {key: value for key, value in config["model"].items() if key not in FOREIGN}
        kind = values.pop("model_type")
        if "timm" in kind or values.get("use_pretrained_backbone"):
            raise ValueError("a network inside another is not restored")
        found = AutoConfig.for_model(kind, **values)
        body = ImageFeatures(AutoModel.from_config(found, attn_implementation="sdpa"), config["pooled"])
        _remove(body, config["unused"])
        return body


def _has_pooler(model: nn.Module) -> bool:
    """Whether it is said to pool: a vision transformer without a pooling layer returns None for it."""
    return not hasattr(model, "pooler") or model.pooler is not None


def _unused(body: nn.Module, side: int) -> Iterator[str]:
    """The largest modules of whose parameters the vector of an image does not depend on any: the text side."""
    with torch.enable_grad():
        body(torch.zeros(1, 3, side, side)).sum().backward()
    used = {name for name, parameter in body.named_parameters() if parameter.grad is not None}
    body.zero_grad(set_to_none=True)
    found: list[str] = []
    for name, module in body.named_modules():
        own = [f"{name}.{one}" for one, _ in module.named_parameters()]
        if name and own and not used.intersection(own) and not name.startswith(tuple(f"{one}." for one in found)):
            found.append(name)
    yield from found


def _remove(body: nn.Module, unused: Sequence[str]) -> None:
    for name in unused:
        body.set_submodule(name, nn.Identity())


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

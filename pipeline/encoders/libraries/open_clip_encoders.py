"""Image encoders and text encoders that are one side of an OpenCLIP model.

A side is saved with the configuration of the whole model, `open_clip_config.json`, and with the weights of this side.
"""

import copy
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import open_clip
import safetensors.torch
import torch
from torch import nn

from pipeline.encoders.libraries.folder import read_config
from pipeline.encoders.libraries.library_encoders import (
    FetchedImages,
    LibraryImages,
    LibraryTexts,
    load_half,
    only_side,
    user_folder,
)
from pipeline.encoders.material import EncoderMaterial, Settings, WeightsOrigin
from pipeline.encoders.weights import parse

if TYPE_CHECKING:
    from pipeline.config.encoders import OpenClipImagesEntry, OpenClipTextsEntry

HUB = "hf-hub:"
"""Prefix of the names of models on the Hugging Face hub."""
CONFIG = "open_clip_config.json"
WEIGHTS = "open_clip_model.safetensors"
TOKENIZER_OPTIONS = ("clean", "strip_sep_token")
"""Options of a tokenizer that a stored configuration may have."""


class ImageTower(nn.Module):
    """The image side of a model, with the configuration of the whole model.

    It maps images (n, 3, side, side) to vectors (n, dim).
    """

    config: Settings

    def __init__(self, visual: nn.Module, config: Settings) -> None:
        super().__init__()
        self.visual = visual
        self.config = config

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output = self.visual(images)
        return output[0] if isinstance(output, tuple) else output


class TextTower(nn.Module):
    """The text side of a model, with the configuration of the whole model.

    It maps ids of tokens (n, length) to vectors (n, dim).
    """

    model: "open_clip.CLIP"
    config: Settings

    def __init__(self, model: "open_clip.CLIP", config: Settings) -> None:
        super().__init__()
        self.model = model
        self.model.visual = nn.Identity()
        self.config = config

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model.encode_text(ids)


class OpenClipImages(LibraryImages):
    """The image side of an OpenCLIP model."""

    kind = "open_clip"

    @staticmethod
    def fetch(entry: "OpenClipImagesEntry", material: EncoderMaterial) -> FetchedImages:
        folder, weights = user_folder(entry, material)
        name = f"local-dir:{folder}" if folder else entry.architecture
        if folder or name.startswith(HUB):
            model = open_clip.create_model(name, require_pretrained=True)
        elif entry.file is not None:
            data, sha256 = material.weights(entry.file, entry.sha256)
            model = open_clip.create_model(name, load_weights=False)
            model.load_state_dict(parse(data, entry.file))
            weights = {"origin": entry.file, "sha256": sha256}
        else:
            require_tag(entry.architecture, None if entry.weights == "hub" else entry.weights)
            model = open_clip.create_model(name, pretrained=entry.weights)
            weights = {"origin": f"{entry.architecture}, {entry.weights}"}
        body = ImageTower(model.visual, config_of(name, model))
        return FetchedImages(body, read_preprocessing(model.visual.preprocess_cfg), weights)

    def save(self, folder: Path) -> None:
        assert isinstance(self.body, ImageTower)
        write_side(folder, self.body.config, self.body.state_dict())

    @staticmethod
    def load(folder: Path, about: Settings) -> nn.Module:
        model, config = build(folder)
        load_half(model, safetensors.torch.load_file(folder / WEIGHTS), lambda name: not name.startswith("visual."))
        return ImageTower(model.visual, config)


class OpenClipTexts(LibraryTexts):
    """The text side of an OpenCLIP model, and its tokenizer."""

    kind = "open_clip"

    def __init__(
        self,
        body: TextTower,
        weights: WeightsOrigin,
        tokenizer: "open_clip.SimpleTokenizer | open_clip.tokenizer.HFTokenizer",
    ) -> None:
        if not isinstance(tokenizer, open_clip.SimpleTokenizer | open_clip.tokenizer.HFTokenizer):
            raise ValueError(f"the tokenizer {type(tokenizer).__name__} of the model is not supported")
        self.tokenizer = tokenizer
        self.tower = body
        super().__init__(body, weights)

    @classmethod
    def fetch(
        cls, entry: "OpenClipTextsEntry", weights: dict[str, str | int], repository: str | Path
    ) -> "OpenClipTexts":
        tag = entry.weights
        source = f"local-dir:{repository}" if isinstance(repository, Path) else repository
        if not isinstance(repository, Path) and not source.startswith(HUB):
            require_tag(source, tag)
        if "hf_model_name" in (open_clip.get_model_config(source) or {}).get("text_cfg", {}):
            raise ValueError(
                "the text side of the model is a model of transformers, which is not supported. Use that model in an"
                " encoder of kind: transformers"
            )
        model = open_clip.create_model(source, pretrained=tag, require_pretrained=True).float()
        weights |= {"tag": tag} if tag else {}
        return cls(TextTower(model, config_of(source, model)), weights, open_clip.get_tokenizer(source))

    def save(self, folder: Path) -> None:
        state = {name.removeprefix("model."): tensor for name, tensor in self.tower.state_dict().items()}
        write_side(folder, self.tower.config, state)
        if isinstance(self.tokenizer, open_clip.tokenizer.HFTokenizer):
            self.tokenizer.tokenizer.save_pretrained(folder)

    @classmethod
    def load(cls, folder: Path, weights: WeightsOrigin) -> "OpenClipTexts":
        model, config = build(folder)
        load_half(model, safetensors.torch.load_file(folder / WEIGHTS), lambda name: name.startswith("visual."))
        return cls(TextTower(model.float(), config), weights, open_clip.get_tokenizer(f"local-dir:{folder}"))

    def tokenise(self, texts: Sequence[str]) -> tuple[torch.Tensor, ...]:
        return (self.tokenizer(list(texts)),)


def require_tag(architecture: str, tag: str | None) -> None:
    """Raise ValueError, with the known tags of pretrained weights for the `architecture`, if `tag` is None."""
    if tag is None:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
        raise ValueError(f"the key weights must name one of the pretrained weights of {architecture}, which are {tags}")


def config_of(name: str, model: nn.Module) -> dict[str, Any]:
    """Return the configuration of the `model` that OpenCLIP has created by its `name`.

    The key `quick_gelu` of the configuration says whether the model contains this activation. The key
    `timm_model_pretrained` is left out.
    """
    config = copy.deepcopy(open_clip.get_model_config(name))
    assert config is not None
    quick = any(isinstance(module, open_clip.transformer.QuickGELU) for module in model.modules())
    vision = {name: value for name, value in config["vision_cfg"].items() if name != "timm_model_pretrained"}
    return {**config, "vision_cfg": vision, "quick_gelu": quick}


def write_side(folder: Path, config: Settings, state: Mapping[str, torch.Tensor]) -> None:
    """Write the configuration of a whole model to the file CONFIG in `folder`, and the weights `state` of one side to
    the file WEIGHTS."""
    text = json.dumps({"model_cfg": config, "preprocess_cfg": {}}, indent=1)
    (folder / CONFIG).write_text(text, encoding="utf-8")
    safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / WEIGHTS)


def build(folder: Path) -> "tuple[open_clip.CLIP, dict[str, Any]]":
    """Build the model that a folder describes, without its weights, and return it with its configuration.

    Raises ValueError if the tokenizer has an option that is not in TOKENIZER_OPTIONS.
    """
    config: Any = read_config(folder, CONFIG)
    config = config["model_cfg"]
    if unknown := set(config["text_cfg"].get("tokenizer_kwargs") or {}).difference(TOKENIZER_OPTIONS):
        raise ValueError(f"the tokenizer of the model has the option {min(unknown)}, which is not supported")
    plain = {"load_weights": False, "pretrained_image": False, "pretrained_text": False}
    logging.disable(logging.WARNING)  # OpenCLIP would warn of missing weights, which are loaded later.
    try:
        return open_clip.create_model(f"local-dir:{folder}", **plain), config
    finally:
        logging.disable(logging.NOTSET)


def read_preprocessing(config: Settings) -> dict[str, Any]:
    """Return the preprocessing that the configuration of an OpenCLIP model states, by the keys resize, crop, mean, std
    and interpolation of `Preprocessing`.

    Sides are in pixels, and `crop` is None if images are squashed to a square. Raises ValueError if the images are not
    square, or if the resize_mode is neither shortest nor squash.
    """
    side = only_side(config["size"])
    if config["resize_mode"] not in ("shortest", "squash"):
        raise ValueError(f"the resize_mode {config['resize_mode']} of the model is not supported")
    crop = side if config["resize_mode"] == "shortest" else None
    return {"resize": side, "crop": crop, **{key: config[key] for key in ("mean", "std", "interpolation")}}

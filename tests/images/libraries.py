"""Tiny networks of other libraries with random weights, as their users would have them."""

import json
from pathlib import Path

import pytest
import torch

WIDTH, DIM = 16, 12
SIDES = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
"""Of transformers' text and image sides."""
CLIP_MEAN, CLIP_STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)


def store(kind: str, side: int, root: Path) -> Path:
    """`root`, with what an encoder of the kind `kind` that takes images of this side is made from."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        STORES.get(kind, lambda *_: None)(side, root)
    return root


def _store_transformers(side: int, root: Path) -> None:
    pytest.importorskip("transformers")
    from transformers import CLIPConfig, CLIPModel

    text = {**SIDES, "vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2}
    vision = {**SIDES, "image_size": side, "patch_size": 8}
    save_transformers(CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=DIM)), side, root)


def save_transformers(model: object, side: int, root: Path) -> None:
    """`model` with CLIP's preprocessing, in the folder `transformers`."""
    from transformers import CLIPImageProcessor

    geometry = {"size": {"shortest_edge": side + 8}, "crop_size": {"height": side, "width": side}}
    model.save_pretrained(root / "transformers")
    CLIPImageProcessor(**geometry, image_mean=CLIP_MEAN, image_std=CLIP_STD).save_pretrained(root / "transformers")


def _store_open_clip(side: int, root: Path) -> None:
    open_clip = pytest.importorskip("open_clip")
    from safetensors.torch import save_file

    vision = {"image_size": side, "layers": 2, "width": WIDTH, "head_width": 8, "patch_size": 8}
    text = {"context_length": 8, "vocab_size": 99, "width": WIDTH, "heads": 2, "layers": 1}
    config = {"embed_dim": DIM, "vision_cfg": vision, "text_cfg": text}
    said = {"size": side, "mean": CLIP_MEAN, "std": CLIP_STD, "interpolation": "bicubic", "resize_mode": "shortest"}
    (folder := root / "open_clip").mkdir()
    written = json.dumps({"model_cfg": config, "preprocess_cfg": said})
    (folder / "open_clip_config.json").write_text(written)
    save_file(open_clip.CLIP(**config).state_dict(), folder / "open_clip_model.safetensors")


STORES = {"transformers": _store_transformers, "open_clip": _store_open_clip}

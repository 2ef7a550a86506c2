"""The text sides of OpenCLIP's models as encoders."""

from collections.abc import Mapping
from typing import Any

import open_clip
from open_clip.model import _build_text_tower
from torch import nn

from pipeline.encoders.libraries.hubs import OPEN_CLIP_HUB, open_clip_config, own_folder, require_plain_config
from pipeline.encoders.libraries.text_networks import CLEANERS, FetchedText, LibraryTextEncoder, padding_of, tokenize_by
from pipeline.encoders.text_encoder import TextMaterial


class OpenClipTextEncoder(LibraryTextEncoder):
    kind = "open_clip"

    @staticmethod
    def fetch(entry: Any, material: TextMaterial) -> FetchedText:
        name, tag = entry.own.architecture, entry.own.weights
        folder, weights = own_folder(name, material.folder)
        cfg = open_clip_config(folder, name)
        if not folder and not name.startswith(OPEN_CLIP_HUB) and tag is None:
            tags = ", ".join(open_clip.list_pretrained_tags_by_model(name)) or "none"
            raise ValueError(f"name in weights which of its pretrained weights are meant: {tags}")
        if _of_transformers(cfg["text_cfg"]):
            raise ValueError("its text side is of transformers; name that model, kind transformers")
        place = f"local-dir:{folder}" if folder else name
        model = open_clip.create_model(place, pretrained=tag, require_pretrained=True).float().eval()
        quick = any(isinstance(module, open_clip.transformer.QuickGELU) for module in model.modules())
        config = {"embed_dim": cfg["embed_dim"], "text": cfg["text_cfg"], "quick_gelu": quick}
        body, whole = OpenClipTextEncoder.build(config), getattr(model, "text", model).state_dict()
        body.load_state_dict({key: whole[key] for key in body.state_dict()})
        tokenizer = None
        if "hf_tokenizer_name" in cfg["text_cfg"]:  # of SigLIP
            tokenizer, config["tokens"] = _fetch_tokenizer(place)
        return FetchedText(body.float().eval(), tokenizer, config, weights | ({"tag": tag} if tag else {}))

    @staticmethod
    def build(config: Mapping[str, Any]) -> nn.Module:
        if _of_transformers(config["text"]):
            raise ValueError("a network inside another is not restored")
        require_plain_config(config["text"])
        return _build_text_tower(config["embed_dim"], {**config["text"], "output_tokens": False}, config["quick_gelu"])

    @staticmethod
    def make_split(config: Mapping[str, Any], tokenizer: str | None) -> Any:
        if tokenizer is not None:
            tokenize = tokenize_by(tokenizer, config["tokens"])
            return lambda texts: tokenize(texts)[:1]
        options = config["text"].get("tokenizer_kwargs") or {}
        length = config["text"].get("context_length", open_clip.tokenizer.DEFAULT_CONTEXT_LENGTH)
        known = open_clip.SimpleTokenizer(context_length=length, **{"clean": options.get("clean", "lower")})
        return lambda texts: (known(texts),)


def _of_transformers(text: Mapping[str, Any]) -> bool:
    """Whether the network of a text side is one of transformers; SigLIP's has only a tokenizer from there."""
    return any(key.startswith("hf_") and key != "hf_tokenizer_name" for key in text)


def _fetch_tokenizer(place: str) -> tuple[str, dict[str, Any]]:
    """The JSON of a tokenizer of transformers that OpenCLIP names, and how it is used."""
    wrapper = open_clip.get_tokenizer(place)
    tokenizer = wrapper.tokenizer
    clean = wrapper.clean_fn.__name__.removeprefix("_clean_")
    if wrapper.tokenizer_mode or wrapper.strip_sep_token or not hasattr(tokenizer, "backend_tokenizer"):
        raise ValueError("its tokenizer is not used as SigLIP's")
    if clean not in CLEANERS:
        raise ValueError(f"its texts are cleaned in a way that is not known here ({clean})")
    used = {"length": wrapper.context_length, "full": True, "clean": clean, "padding": padding_of(tokenizer, True)}
    return tokenizer.backend_tokenizer.to_str(), used

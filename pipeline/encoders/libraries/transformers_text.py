"""Text networks of Hugging Face's transformers and of sentence-transformers as encoders."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from pipeline.encoders.libraries.hubs import own_folder
from pipeline.encoders.libraries.hugging_face import (
    build_model,
    config_of,
    fetch_model,
    remove,
    remove_unused,
    require_weights,
)
from pipeline.encoders.libraries.text_networks import FetchedText, LibraryTextEncoder, padding_of, tokenize_by
from pipeline.encoders.text_encoder import TextMaterial

LONGEST = 512
"""Tokens, where neither the tokenizer nor the model says how many."""
SIGLIP = ("siglip", "siglip2")
SHARED = "shared"
"""The pooling of a model of images and text: its text's vector in the shared space."""
ACTIVATIONS = {"Identity": nn.Identity, "Tanh": nn.Tanh, "ReLU": nn.ReLU, "GELU": nn.GELU}
Split = Callable[[Sequence[str]], tuple[torch.Tensor, torch.Tensor]]


class PooledText(nn.Module):
    """The vector of a text: by `pooling` SHARED, or the mean, maximum, first or last of its tokens; then the layers of
    `dense`."""

    def __init__(self, model: nn.Module, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.pooling, self.masked = model, config["pooling"], config["masked"]
        self.dense = nn.Sequential()
        for layer in config["dense"]:
            self.dense.append(nn.Linear(*layer["shape"], layer["bias"]))
            self.dense.append(ACTIVATIONS[layer["activation"]]())

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        arguments = {"input_ids": ids} | ({"attention_mask": mask} if self.masked else {})
        if self.pooling == SHARED:
            vectors = self.model.get_text_features(**arguments)
            return self.dense(vectors if isinstance(vectors, torch.Tensor) else vectors.pooler_output)
        states = self.model(**arguments).last_hidden_state
        return self.dense(POOLINGS[self.pooling](states, mask[:, :, None]))


POOLINGS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mean": lambda states, mask: (states * mask).sum(1) / mask.sum(1).clamp(min=1),
    "max": lambda states, mask: states.masked_fill(mask == 0, -torch.inf).amax(1),
    "cls": lambda states, mask: states[:, 0],
    "lasttoken": lambda states, mask: states[torch.arange(len(states)), mask[:, :, 0].sum(1).clamp(min=1) - 1],
}
"""Pooling -> (n, d) of states (n, t, d) and the mask (n, t, 1) of a text's own tokens, which come first."""


class TransformersTextEncoder(LibraryTextEncoder):
    kind = "transformers"

    @staticmethod
    def fetch(entry: Any, material: TextMaterial) -> FetchedText:
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        folder, weights = own_folder(entry.own.architecture, material.folder)
        place = folder or entry.own.architecture
        model, missing = fetch_model(place)
        require_weights(missing)
        shared = hasattr(model, "get_text_features")
        about = {"pooling": SHARED if shared else "mean", "dense": [], "full": shared}
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        if model.config.model_type in SIGLIP:  # its own tokenizer cleans texts, and it was trained without masks
            about |= {"clean": "canonicalize", "masked": False}
            if not hasattr(tokenizer, "backend_tokenizer"):
                tokenizer = PreTrainedTokenizerFast.from_pretrained(place)
        return assemble(model, tokenizer, about, weights)

    @staticmethod
    def build(config: Mapping[str, Any]) -> nn.Module:
        body = PooledText(build_model(config["model"]), config)
        remove(body, config["unused"])
        return body

    @staticmethod
    def make_split(config: Mapping[str, Any], tokenizer: str | None) -> Split:
        return tokenize_by(tokenizer, config)


class SentenceTransformersEncoder(TransformersTextEncoder):
    """One transformer, one pooling, then dense layers; normalising is the text view's."""

    kind = "sentence-transformers"

    @staticmethod
    def fetch(entry: Any, material: TextMaterial) -> FetchedText:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

        folder, weights = own_folder(entry.own.architecture, material.folder)
        place = str(folder or entry.own.architecture)
        whole = SentenceTransformer(place, device="cpu", model_kwargs={"use_safetensors": True})
        first, pooling, *rest = whole
        kept = [module for module in rest if not isinstance(module, Normalize)]
        if not isinstance(first, Transformer) or not isinstance(pooling, Pooling) or len(kept) > 1:
            raise ValueError("it is not a transformer, a pooling and at most one dense layer")
        if kept and not isinstance(kept[0], Dense):
            raise ValueError(f"its layer {type(kept[0]).__name__} is not known here")
        if whole.default_prompt_name or pooling.pooling_mode not in POOLINGS:
            raise ValueError("its prompt or its pooling is not known here")
        dense = [
            {
                "shape": list(layer.linear.weight.shape[::-1]),
                "bias": layer.linear.bias is not None,
                "activation": type(layer.activation_function).__name__,
            }
            for layer in kept
        ]
        about = {
            "pooling": pooling.pooling_mode,
            "dense": dense,
            "full": False,
            "clean": "lower" if first.do_lower_case else "none",
        }
        about |= {"length": first.max_seq_length} if first.max_seq_length else {}
        fetched = assemble(first.auto_model.float().eval(), first.tokenizer, about, weights)
        for layer, copy in zip(kept, fetched.body.dense[::2], strict=True):
            copy.load_state_dict(layer.linear.state_dict())
        return fetched


def assemble(model: nn.Module, tokenizer: Any, about: Mapping[str, Any], weights: dict[str, Any]) -> FetchedText:
    """A model and its tokenizer as an encoder. Raises ValueError for a tokenizer that is not one of `tokenizers`."""
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is None:
        raise ValueError("it has no tokenizer.json")
    sides = getattr(model.config, "text_config", model.config)
    limits = (tokenizer.model_max_length, getattr(sides, "max_position_embeddings", LONGEST), LONGEST)
    padding = padding_of(tokenizer, about["full"])
    masked = "attention_mask" in tokenizer.model_input_names
    masked = masked and "attention_mask" in inspect.signature(model.forward).parameters
    config = {"model": config_of(model), "length": int(min(limits)), "padding": padding, "masked": masked}
    config |= {"clean": "none", **about}
    body = PooledText(model, config).eval()
    text = backend.to_str()
    split = TransformersTextEncoder.make_split(config, text)
    config["unused"] = remove_unused(body, lambda: body(*split(["a text"])))
    if commit := getattr(model.config, "_commit_hash", None):
        weights["commit"] = commit
    return FetchedText(body, text, config, weights)

"""Text networks of other libraries as encoders: fetched by `prepare-text-encoder`, then restored from what it kept."""

import string
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from pipeline.encoders.libraries.hubs import fetching, offline
from pipeline.encoders.text_encoder import TextEncoder, TextMaterial
from pipeline.errors import InputError
from pipeline.text.tokens import normalise_text

BATCH = 64
"""Texts in one forward pass."""
MAX_TOKENS = 1 << 13
"""Tokens of a text at most."""
BODY, TOKENIZER = "body/", "tokenizer"
PUNCTUATION = str.maketrans("_", " ", string.punctuation.replace("_", ""))


@dataclass(frozen=True)
class FetchedText:
    """A library's network of texts: its `body`, the JSON of its `tokenizer` (None: the library's own), the `config`
    (JSON) by which both are built again, and where it comes from."""

    body: nn.Module
    tokenizer: str | None
    config: Mapping[str, Any]
    weights: Mapping[str, Any]


def canonical(text: str) -> str:
    """As SigLIP's own processor cleans a text: lower case without ASCII punctuation, one space between words."""
    return " ".join(text.translate(PUNCTUATION).lower().split())


CLEANERS: dict[str, Callable[[str], str]] = {"none": str, "lower": str.lower, "canonicalize": canonical}
"""How a text is cleaned before it is divided into tokens."""


def tokenize_by(tokenizer: str, config: Mapping[str, Any]) -> Callable[[Sequence[str]], tuple[torch.Tensor, ...]]:
    """The function texts -> ids (n, t) and mask (n, t) of a `tokenizer` of the library tokenizers (JSON): cut after
    `length` tokens, and padded to the longest text, or to `length` if `full`."""
    from tokenizers import Tokenizer

    if type(config["length"]) is not int or not 0 < config["length"] <= MAX_TOKENS:
        raise ValueError(f"its length is not a number of tokens from 1 to {MAX_TOKENS}")
    tokens = Tokenizer.from_str(tokenizer)
    tokens.enable_truncation(config["length"])
    tokens.enable_padding(**config["padding"], length=config["length"] if config["full"] else None)
    clean = CLEANERS[config["clean"]]

    def split(texts: Sequence[str]) -> tuple[torch.Tensor, ...]:
        encoded = tokens.encode_batch(list(map(clean, texts)))
        return torch.tensor([text.ids for text in encoded]), torch.tensor([text.attention_mask for text in encoded])

    return split


def padding_of(tokenizer: Any, full: bool) -> dict[str, Any]:
    """How a tokenizer of transformers pads; texts of varying length always at their end."""
    padding = {"pad_id": tokenizer.pad_token_id, "pad_token": tokenizer.pad_token}
    padding |= {"direction": tokenizer.padding_side} if full else {}
    return {name: value for name, value in padding.items() if value is not None}


class LibraryTextEncoder(TextEncoder):
    """`body` maps what `tokens` makes of n texts to (n, dim). Computes in float32 on the processor."""

    def __init__(self, fetched: FetchedText) -> None:
        self.body, self.tokenizer, self.config, self.weights = vars(fetched).values()
        self.split = self.make_split(self.config, self.tokenizer)
        self.dim = self.encode(["a"]).shape[1]

    @staticmethod
    @abstractmethod
    def fetch(entry: Any, material: TextMaterial) -> FetchedText:
        """The network of an entry, from the library's hub, or a folder of the user's."""

    @staticmethod
    @abstractmethod
    def build(config: Mapping[str, Any]) -> nn.Module:
        """The network without its weights. Reads no file, asks no hub and runs no code but the library's."""

    @staticmethod
    @abstractmethod
    def make_split(config: Mapping[str, Any], tokenizer: str | None) -> Any:
        """What maps a list of texts to the tensors that the body takes."""

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        texts = list(map(normalise_text, texts))
        starts = range(0, len(texts), BATCH)
        with torch.inference_mode():
            rows = [self.body(*self.split(texts[start : start + BATCH])).float().numpy() for start in starts]
        return np.concatenate(rows) if rows else np.empty((0, self.dim), np.float32)

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, "config": dict(self.config), "weights": dict(self.weights)}

    def tensors(self) -> dict[str, np.ndarray]:
        body = {BODY + name: tensor.numpy() for name, tensor in self.body.state_dict().items()}
        return body | ({TOKENIZER: np.frombuffer(self.tokenizer.encode(), np.uint8)} if self.tokenizer else {})

    @classmethod
    def prepare(cls, entry: Any, material: TextMaterial) -> "LibraryTextEncoder":
        """Raises InputError where the network cannot be had, or makes no finite vectors of texts."""
        with fetching(entry.name, entry.own.architecture, cls.kind):
            encoder = cls(cls.fetch(entry, material))
            if not np.isfinite(encoder.encode(["a", "two words"])).all():
                raise InputError(f"text encoder {entry.name} makes vectors that are not finite; get its weights again")
        return encoder

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "LibraryTextEncoder":
        config, tokenizer = settings["config"], tensors.get(TOKENIZER)
        with torch.random.fork_rng(devices=[]), offline():
            body = cls.build(config).float().eval()
        state = {name: torch.from_numpy(one) for name, one in tensors.items() if name.startswith(BODY)}
        body.load_state_dict({name.removeprefix(BODY): tensor for name, tensor in state.items()})
        text = None if tokenizer is None else tokenizer.tobytes().decode()
        return cls(FetchedText(body, text, config, settings["weights"]))

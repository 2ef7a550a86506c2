"""Text networks of other libraries as encoders: fetched by `prepare-text-encoder`, then restored from what it kept."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from pipeline.errors import InputError
from pipeline.hubs import fetching, offline
from pipeline.text.text_encoder import TextEncoder, TextMaterial
from pipeline.text.tokens import normalise_text

BATCH = 64
"""Texts in one forward pass."""
BODY, TOKENIZER = "body/", "tokenizer"


@dataclass(frozen=True)
class FetchedText:
    """A library's network of texts: its `body`, the JSON of its `tokenizer` (None: the library's own), the `config`
    (JSON) by which both are built again, and where it comes from."""

    body: nn.Module
    tokenizer: str | None
    config: Mapping[str, Any]
    weights: Mapping[str, Any]


class LibraryTextEncoder(TextEncoder):
    """`body` maps what `tokens` makes of n texts to (n, dim). Computes in float32 on the processor."""

    def __init__(self, found: FetchedText) -> None:
        self.body, self.tokenizer, self.config, self.weights = vars(found).values()
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
        own = {BODY + name: tensor.numpy() for name, tensor in self.body.state_dict().items()}
        return own | ({TOKENIZER: np.frombuffer(self.tokenizer.encode(), np.uint8)} if self.tokenizer else {})

    @classmethod
    def prepare(cls, entry: Any, material: TextMaterial) -> "LibraryTextEncoder":
        """Raises InputError where the network cannot be had, or makes no finite vectors of texts."""
        with fetching(entry.name, entry.own.architecture, cls.kind):
            made = cls(cls.fetch(entry, material))
            if not np.isfinite(made.encode(["a", "two words"])).all():
                raise InputError(f"text encoder {entry.name} makes vectors that are not finite; get its weights again")
        return made

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "LibraryTextEncoder":
        config, tokenizer = settings["config"], tensors.get(TOKENIZER)
        with torch.random.fork_rng(devices=[]), offline():
            body = cls.build(config).float().eval()
        state = {name: torch.from_numpy(one) for name, one in tensors.items() if name.startswith(BODY)}
        body.load_state_dict({name.removeprefix(BODY): tensor for name, tensor in state.items()})
        text = None if tokenizer is None else tokenizer.tobytes().decode()
        return cls(FetchedText(body, text, config, settings["weights"]))

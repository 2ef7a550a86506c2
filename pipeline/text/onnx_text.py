"""ONNX files as text encoders, computed by onnxruntime, with a tokenizer of `tokenizers`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from pipeline.errors import MALFORMED, InputError, brief
from pipeline.onnx_graphs import FILE, explained, open_graph
from pipeline.text.text_encoder import TextEncoder, TextMaterial
from pipeline.text.tokens import normalise_text

BATCH, LONGEST = 64, 512
"""Texts computed at once; tokens, where neither the graph, the tokenizer nor the entry says how many."""
TOKENIZER = "tokenizer"
GIVEN = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""Inputs that a graph may have, of which the first is needed -> what the tokenizer calls them."""


class OnnxTextEncoder(TextEncoder):
    """The graph in `data` maps the tokens of n texts, int64 (n, t), to vectors (n, dim), or to states (n, t, dim) whose
    mean over a text's own tokens is its vector; of several outputs the one named `output`, or the first. The JSON of
    the `tokenizer` splits a text, of which at most `length` tokens are read. A graph without a mask is given texts of
    one number of tokens at a time, unless it or the tokenizer fixes that number: none is padded to fit its neighbours.
    """

    kind = "onnx"

    def __init__(
        self, data: bytes, tokenizer: str, length: int | None, output: str | None, weights: Mapping[str, Any]
    ) -> None:
        self.data, self.tokenizer, self.weights, self.given = data, tokenizer, weights, {"length": length}
        self.session = open_graph(data)
        shapes = {part.name: part.shape for part in self.session.get_inputs()}
        if "input_ids" not in shapes or not shapes.keys() <= GIVEN.keys():
            raise ValueError(f"its inputs are {', '.join(shapes)}, not input_ids with or without attention_mask")
        self.inputs, self.output = tuple(shapes), output or self.session.get_outputs()[0].name
        self.size, fixed = (part if isinstance(part, int) else None for part in shapes["input_ids"])
        self.split = Tokenizer.from_str(tokenizer)
        self.split.enable_truncation(fixed or length or (self.split.truncation or {}).get("max_length", LONGEST))
        padding = self.split.padding or {}
        self.padded = fixed if "attention_mask" in shapes else fixed or padding.get("length")
        pad = {key: value for key, value in padding.items() if key in ("pad_id", "pad_token")}
        self.split.enable_padding(**pad, length=self.padded)
        self.dim = self.encode(["a"]).shape[1]

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        if not (texts := list(map(normalise_text, texts))):
            return np.empty((0, self.dim), np.float32)
        size, order, cuts = self.size or BATCH, np.arange(len(texts)), np.array([], np.int64)
        if "attention_mask" not in self.inputs and self.padded is None:
            lengths = np.array([sum(tokens.attention_mask) for tokens in self.split.encode_batch(texts)])
            order = np.argsort(lengths, kind="stable")
            cuts = np.flatnonzero(np.diff(lengths[order])) + 1
        parts = [
            self._run([texts[at] for at in alike[start : start + size]])
            for alike in np.split(order, cuts)
            for start in range(0, len(alike), size)
        ]
        return np.concatenate(parts)[np.argsort(order)]

    def _run(self, texts: list[str]) -> np.ndarray:
        blank = [""] * ((self.size or 0) - len(texts))
        split = self.split.encode_batch([*texts, *blank])
        tokens = {
            name: np.array([getattr(encoding, key) for encoding in split], np.int64) for name, key in GIVEN.items()
        }
        if not tokens["input_ids"].size:  # no text has a token, and graphs take at least one
            tokens = {name: np.zeros((len(split), 1), np.int64) for name in GIVEN}
        with explained():
            (output,) = self.session.run([self.output], {name: tokens[name] for name in self.inputs})
        if output.dtype.kind != "f" or output.ndim not in (2, 3) or len(output) != len(split):
            raise ValueError(f"its output {self.output} is {output.dtype} {output.shape}, not vectors")
        if output.ndim == 3:
            mask = tokens["attention_mask"].astype(np.float32)[:, :, None]
            output = (output * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)
        return output[: len(texts)].astype(np.float32)

    def settings(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            **self.given,
            "output": self.output,
            "padded": self.padded,
            "weights": dict(self.weights),
        }

    def tensors(self) -> dict[str, np.ndarray]:
        parts = {FILE: self.data, TOKENIZER: self.tokenizer.encode()}
        return {name: np.frombuffer(part, np.uint8) for name, part in parts.items()}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "OnnxTextEncoder":
        data, tokenizer = (tensors[name].tobytes() for name in (FILE, TOKENIZER))
        try:
            return cls(data, tokenizer.decode(), settings["length"], settings["output"], settings["weights"])
        except MALFORMED:
            raise
        except Exception as error:  # which is all that tokenizers raises
            raise ValueError(brief(error)) from error

    @classmethod
    def prepare(cls, entry: Any, material: TextMaterial) -> "OnnxTextEncoder":
        """Raises InputError for a graph or a tokenizer that cannot be used, or that makes no finite vectors."""
        own, (data, tokenizer) = entry.own, material.files()
        try:
            settings = {"length": own.length, "output": own.output, "weights": {"origin": own.file}}
            tensors = {FILE: np.frombuffer(data, np.uint8), TOKENIZER: np.frombuffer(tokenizer, np.uint8)}
            encoder = cls.from_parts(settings, tensors)
            if not np.isfinite(encoder.encode(["a", "two words"])).all():
                raise ValueError("its vectors are not finite")
        except MALFORMED as error:
            raise InputError(
                f"{own.file} cannot be used as a text encoder ({brief(error)}); export input_ids, with or without"
                " attention_mask, to vectors (n, dim) or states (n, tokens, dim), with its tokenizer.json"
            ) from error
        return encoder

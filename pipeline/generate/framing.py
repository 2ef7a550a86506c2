"""Sentences between their boundaries, as language models read and predict them."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.models.neural.packing import Packed, pack
from pipeline.ragged import offsets_of, runs
from pipeline.text.sequences import Tokens


class Framed(NamedTuple):
    """A model's input, START w1 ... wN, and what it predicts, w1 ... wN END, packed alike."""

    inputs: Packed
    targets: Packed


class Windows(NamedTuple):
    """For each of the k words and ENDs of some sentences: the `context` (k, n - 1) of words before it, the word itself
    in `targets` (k,), its row in `sentences` (k,), and its and the next parts of speech, `tags` (k, 1 + ahead)."""

    context: Tensor
    targets: Tensor
    sentences: Tensor
    tags: Tensor | None


def pad(tokens: Tokens, before: int, after: int, value: int) -> Tokens:
    """Every sentence of `tokens` with `before` and `after` times the id `value` around it."""
    offsets = offsets_of(tokens.lengths + before + after)
    ids = np.full(offsets[-1], value, np.int32)
    ids[runs(offsets[:-1] + before, tokens.lengths)] = tokens.ids[tokens.offsets[0] : tokens.offsets[-1]]
    return Tokens(ids, offsets)


def framed(tokens: Tokens, boundary: int) -> Framed:
    """The inputs and targets of `tokens`; the id `boundary` is START and END."""
    whole, parts = pad(tokens, 1, 1, boundary), []
    for left_out in (whole.offsets[1:] - 1, whole.offsets[:-1]):
        ids = np.delete(whole.ids, left_out)
        parts.append(pack(Tokens(ids, whole.offsets - np.arange(len(whole.offsets))), boundary))
    return Framed(*parts)


def windows(tokens: Tokens, boundary: int, size: int, tags: Tokens | None, no_tag: int, ahead: int) -> Windows:
    """The windows of `tokens`, with `size` words of context. `tags` has every word's part of speech; that of END and
    beyond is `no_tag`."""
    lengths = tokens.lengths + 1

    def cut(padded: Tokens, width: int) -> Tensor:
        starts = runs(padded.offsets[:-1], lengths)
        return torch.from_numpy(padded.ids[starts[:, None] + np.arange(width)].astype(np.int64))

    found = cut(pad(tokens, size, 1, boundary), size + 1)
    kinds = None if tags is None else cut(pad(tags, 0, 1 + ahead, no_tag), 1 + ahead)
    sentences = torch.from_numpy(np.repeat(np.arange(len(tokens)), lengths))
    return Windows(found[:, :-1], found[:, -1], sentences, kinds)


def log_frequencies(tokens: Tokens, count: int) -> np.ndarray:
    """(count,) float32: log of the share of each id, and of END as the last, in the targets of `tokens`.

    An id that does not occur counts as half an occurrence.
    """
    counts = np.bincount(tokens.ids, minlength=count).astype(float)
    counts[count - 1] = len(tokens)
    counts = np.maximum(counts, 0.5)
    return np.log(counts / counts.sum()).astype(np.float32)

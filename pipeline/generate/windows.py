"""Sentences as windows of words with what follows them, as the log-bilinear models read them."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.ragged import offsets_of, runs
from pipeline.text.sequences import Tokens


class Windows(NamedTuple):
    """Of every word and END of some sentences, one after another: the `context` (k, n - 1) of words before it, itself
    `targets` (k,), its `sentences` row (k,), and its part of speech and the next ones, `tags` (k, 1 + ahead)."""

    context: Tensor
    targets: Tensor
    sentences: Tensor
    tags: Tensor | None


def windows(tokens: Tokens, boundary: int, size: int, tags: Tokens | None, no_tag: int, ahead: int) -> Windows:
    """The windows of `tokens`, with `size` words of context. `tags` has a part of speech for every word; END's, and
    those after it, are `no_tag`."""
    lengths = tokens.lengths + 1
    sentences = np.repeat(np.arange(len(tokens)), lengths)
    ids = _padded(tokens, size, 1, boundary)
    first = runs(offsets_of(lengths + size)[:-1], lengths)
    found = ids[first[:, None] + np.arange(size + 1)]
    parts = None
    if tags is not None:
        kinds = _padded(tags, 0, 1 + ahead, no_tag)
        first = runs(offsets_of(lengths + ahead)[:-1], lengths)
        parts = torch.from_numpy(kinds[first[:, None] + np.arange(1 + ahead)])
    return Windows(torch.from_numpy(found[:, :-1]), torch.from_numpy(found[:, -1]), torch.from_numpy(sentences), parts)


def _padded(tokens: Tokens, before: int, after: int, value: int) -> np.ndarray:
    """The ids of all sentences, each with `before` and `after` times `value` around it, int64."""
    lengths = tokens.lengths
    offsets = offsets_of(lengths + before + after)
    ids = np.full(offsets[-1], value, np.int64)
    ids[runs(offsets[:-1] + before, lengths)] = tokens.ids[tokens.offsets[0] : tokens.offsets[-1]]
    return ids

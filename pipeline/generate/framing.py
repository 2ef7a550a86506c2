"""Sentences between their boundaries, as language models read and predict them."""

from typing import NamedTuple

import numpy as np

from pipeline.models.neural.packing import Packed, pack
from pipeline.ragged import offsets_of, runs
from pipeline.text.sequences import Tokens


class Framed(NamedTuple):
    """What a model reads, START w1 ... wN, and what it predicts from it, w1 ... wN END, packed alike."""

    inputs: Packed
    targets: Packed


def frame(tokens: Tokens, boundary: int) -> Tokens:
    """Every sentence of `tokens` with the id `boundary`, which is START and END, at both ends."""
    offsets = offsets_of(tokens.lengths + 2)
    ids = np.full(offsets[-1], boundary, np.int32)
    ids[runs(offsets[:-1] + 1, tokens.lengths)] = tokens.ids[tokens.offsets[0] : tokens.offsets[-1]]
    return Tokens(ids, offsets)


def framed(tokens: Tokens, boundary: int) -> Framed:
    """`tokens` as a model's inputs and targets."""
    whole = frame(tokens, boundary)
    parts = []
    for left_out in (whole.offsets[1:] - 1, whole.offsets[:-1]):
        ids = np.delete(whole.ids, left_out)
        parts.append(pack(Tokens(ids, whole.offsets - np.arange(len(whole.offsets))), boundary))
    return Framed(*parts)


def log_frequencies(tokens: Tokens, count: int) -> np.ndarray:
    """(count,) float32: log of the share that each id, and END as the last, has in the targets of `tokens`.

    An id that does not occur counts as half an occurrence.
    """
    counts = np.bincount(tokens.ids, minlength=count).astype(float)
    counts[count - 1] = len(tokens)
    counts = np.maximum(counts, 0.5)
    return np.log(counts / counts.sum()).astype(np.float32)

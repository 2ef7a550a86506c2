"""Sentences of different lengths as one array of words, position by position, without padding."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.ragged import offsets_of, runs
from pipeline.text.sequences import Tokens


class Packed(NamedTuple):
    """The words of n sentences in packed order: the first words of all, longest sentence first, then the second, ...

    `ids` (total,): the words. `sizes`: how many sentences have a word at each position. `order` (n,): the sentences,
    longest first. `owners` (total,): the sentence of each word. `mirrored` (total,): where the word stands that is as
    far from the sentence's end as this one from its beginning. In the sentences' own order: `lengths` (n,), at least 1,
    and `offsets` (n + 1,); `rows` (total,): where each word stands in `ids`; `last` (n,): the same of last words.
    """

    ids: Tensor
    sizes: list[int]
    order: Tensor
    lengths: Tensor
    offsets: np.ndarray
    owners: Tensor
    mirrored: Tensor
    rows: Tensor
    last: Tensor


def pack(tokens: Tokens, unknown: int) -> Packed:
    """Pack all sentences of `tokens`; a sentence without words becomes the one word `unknown`."""
    lengths = np.maximum(tokens.lengths, 1)
    order = np.argsort(-lengths, kind="stable")
    sizes = len(lengths) - np.searchsorted(np.sort(lengths), np.arange(lengths.max(initial=0)), "right")
    position = np.repeat(np.arange(len(sizes)), sizes)
    sentence = order[runs(np.zeros(len(sizes), np.int64), sizes)]
    there = tokens.lengths[sentence] > 0
    ids = np.full(len(position), unknown, np.int64)
    ids[there] = tokens.ids[(tokens.offsets[sentence] + position)[there]]
    offsets, rows = offsets_of(lengths), np.argsort(sentence, kind="stable")
    ends = offsets[1:] - 1
    tensors = (torch.from_numpy(part) for part in (sentence, rows[ends[sentence] - position], rows, rows[ends]))
    return Packed(
        torch.from_numpy(ids), sizes.tolist(), torch.from_numpy(order), torch.from_numpy(lengths), offsets, *tensors
    )

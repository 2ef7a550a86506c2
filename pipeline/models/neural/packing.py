"""Sentences of any lengths as one array of words, by position, without padding."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.ragged import offsets_of, runs
from pipeline.text.sequences import Tokens


class Packed(NamedTuple):
    """`ids` (total,): the first words of all n sentences, longest sentence first, then the second words, and so on.

    `sizes`: how many sentences have a word at each position. `order` (n,): which sentence each packed row is.
    `lengths` (n,): words in each sentence, in the sentences' own order, at least 1; `offsets` (n + 1,): where each
    begins when sentence stands after sentence. Of each word of `ids`, `owners` (total,) is its sentence, and `mirrored`
    (total,) where the word stands that is as far from the sentence's end as this one from its beginning. `rows`
    (total,) are the words sentence after sentence, `last` (n,) those at the ends.
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
    """Pack all sentences of `tokens`; a sentence without words counts as the one word `unknown`."""
    lengths = np.maximum(tokens.lengths, 1)
    order = np.argsort(-lengths, kind="stable")
    sizes = np.searchsorted(np.sort(lengths), np.arange(lengths.max(initial=0)), "right")
    sizes = len(lengths) - sizes
    position = np.repeat(np.arange(len(sizes)), sizes)
    sentence = order[runs(np.zeros(len(sizes), np.int64), sizes)]
    there = tokens.lengths[sentence] > 0
    ids = np.full(len(position), unknown, np.int64)
    ids[there] = tokens.ids[(tokens.offsets[sentence] + position)[there]]
    offsets, rows = offsets_of(lengths), np.argsort(sentence, kind="stable")
    ends = offsets[1:] - 1
    mirrored = rows[ends[sentence] - position]
    return Packed(
        torch.from_numpy(ids),
        sizes.tolist(),
        torch.from_numpy(order),
        torch.from_numpy(lengths),
        offsets,
        torch.from_numpy(sentence),
        torch.from_numpy(mirrored),
        torch.from_numpy(rows),
        torch.from_numpy(rows[ends]),
    )

"""Sentences of any lengths as one array of words, by position, without padding."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.text.sequences import Tokens


class Packed(NamedTuple):
    """`ids` (total,): the first words of all n sentences, longest sentence first, then the second words, and so on.

    `sizes`: how many sentences have a word at each position. `order` (n,): which sentence each packed row is.
    `lengths` (n,): words in each sentence, in the sentences' own order, at least 1.
    """

    ids: Tensor
    sizes: list[int]
    order: Tensor
    lengths: Tensor

    def last_words(self) -> Tensor:
        """(n,) where in `ids` the last word of each sentence stands, in the sentences' own order."""
        lengths = self.lengths[self.order]
        starts = torch.tensor([0, *self.sizes[:-1]]).cumsum(0)
        last = torch.empty_like(self.order)
        last[self.order] = starts[lengths - 1] + torch.arange(len(lengths))
        return last

    def sentences(self) -> Tensor:
        """(total,) which sentence each word of `ids` belongs to."""
        sizes = torch.tensor(self.sizes, dtype=torch.long)
        starts = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
        return self.order[torch.arange(len(self.ids)) - starts]


def pack(tokens: Tokens, unknown: int) -> Packed:
    """Pack all sentences of `tokens`; a sentence without words counts as the one word `unknown`."""
    lengths = np.maximum(tokens.lengths, 1)
    order = np.argsort(-lengths, kind="stable")
    sizes = np.searchsorted(np.sort(lengths), np.arange(lengths.max(initial=0)), "right")
    sizes = len(lengths) - sizes
    position = np.repeat(np.arange(len(sizes)), sizes)
    sentence = order[np.arange(len(position)) - np.repeat(np.cumsum(sizes) - sizes, sizes)]
    there = tokens.lengths[sentence] > 0
    ids = np.full(len(position), unknown, np.int64)
    ids[there] = tokens.ids[(tokens.offsets[sentence] + position)[there]]
    return Packed(torch.from_numpy(ids), sizes.tolist(), torch.from_numpy(order), torch.from_numpy(lengths))

"""Sentences as a prefix tree, so that a language model reads once what many of them begin with."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.text.sequences import Tokens


class Prefixes(NamedTuple):
    """The b different prefixes of m sentences and the s different steps from one of them to a word or END.

    Prefixes are by length, the empty one first: prefix i ends in `words[i]` (b,), START for the empty one, and is the
    prefix `parents[i]` (b,) and that word; those of length t are `levels[t]` to `levels[t + 1]`. Steps are by the
    prefix that they leave, `origins` (s,), to the id `targets` (s,); `entering` (b,) is the step into each prefix (0
    for the empty one), `ends` (m,) the prefix that each sentence is, `closing` (m,) its step to END.
    """

    words: Tensor
    parents: Tensor
    levels: list[int]
    origins: Tensor
    targets: Tensor
    entering: Tensor
    ends: Tensor
    closing: Tensor


def prefixes(tokens: Tokens, boundary: int) -> Prefixes:
    """The tree of `tokens`; the id `boundary` is START and END."""
    lengths, ids, starts = tokens.lengths, tokens.ids, tokens.offsets[:-1]
    width, ends = boundary + 1, np.zeros(len(lengths), np.int64)
    words, parents, levels = [np.array([boundary])], [np.array([0])], [0, 1]
    going = np.flatnonzero(lengths)  # the sentences that are longer than their prefixes so far
    while len(going):
        step = ids[starts[going] + len(levels) - 2].astype(np.int64)
        keys, reached = np.unique(ends[going] * width + step, return_inverse=True)
        ends[going] = levels[-1] + reached
        words.append(keys % width)
        parents.append(keys // width)
        levels.append(levels[-1] + len(keys))
        going = going[lengths[going] >= len(levels) - 1]
    word, parent = np.concatenate(words), np.concatenate(parents)
    keys, closing = np.unique(ends, return_inverse=True)
    origins, targets = np.concatenate([parent[1:], keys]), np.concatenate([word[1:], np.full(len(keys), boundary)])
    order = np.argsort(origins, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    entering = np.concatenate([[0], place[: len(word) - 1]])
    parts = (origins[order], targets[order], entering, ends, place[len(word) - 1 :][closing])
    return Prefixes(torch.from_numpy(word), torch.from_numpy(parent), levels, *map(torch.from_numpy, parts))

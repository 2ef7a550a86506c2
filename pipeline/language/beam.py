"""Searching a language model for sentences: greedy, sampled, and with a beam, for many images at once."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

State = tuple[Tensor, ...]
"""What a decoder carries from word to word: tensors whose first axis is the hypotheses."""
CHUNK = 64
"""Classes whose greatest is taken first when the best of many are sought."""


class Decoder(Protocol):
    """A language model that n sentences are drawn from. Classes are V words, the unknown word V, and the boundary."""

    boundary: int

    def begin(self) -> tuple[Tensor, State]:
        """Logits (n, V + 2) of the first words, and the state after START."""
        ...

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Logits (k, V + 2) after `words` (k,), each read in its row of `state`."""
        ...


@dataclass(frozen=True)
class Search:
    """`beam` hypotheses an image (1 is greedy), at most `longest` words.

    Hypotheses compare by log P / L ** `length_power`, L their words and END; 0 compares probabilities.
    """

    beam: int
    length_power: float
    longest: int


@dataclass(frozen=True)
class Hypothesis:
    """The ids of a sentence's words, and the natural logarithm of its probability."""

    words: tuple[int, ...]
    log_probability: float


@torch.inference_mode()
def beam_search(decoder: Decoder, search: Search) -> list[list[Hypothesis]]:
    """For every image the `beam` hypotheses that are left, best first.

    All images advance together, and leave when their hypotheses have all ended; what an image gets does not depend on
    the others. A sentence has one word or more, and never the unknown word.
    """
    logits, state = decoder.begin()
    n, beam, boundary = len(logits), min(search.beam, logits.shape[1] - 2), decoder.boundary
    logits[:, boundary] = -torch.inf
    total, words = _best_classes(_mask(logits, boundary), beam)
    history = words[:, :, None]
    length = torch.ones_like(words)
    ended = torch.zeros_like(words, dtype=torch.bool)
    state = tuple(part.repeat_interleave(beam, dim=0) for part in state)
    live, found = torch.arange(n), [[] for _ in range(n)]
    for position in range(1, search.longest):
        logits, state = decoder.step(history[:, :, -1].reshape(-1), state)
        score, words = _best_classes(_mask(logits, boundary), beam)
        score, words = score.view(-1, beam, beam), words.view(-1, beam, beam)
        # An ended hypothesis goes on as it is, once.
        score[ended] = -torch.inf
        score[..., 0].masked_fill_(ended, 0)
        words[ended] = boundary
        score += total[:, :, None]
        length = torch.where(ended, length, position + 1)
        worth = (score / length[:, :, None] ** search.length_power).flatten(1)
        chosen = worth.topk(beam).indices
        parent = chosen // beam
        total, last = score.flatten(1).gather(1, chosen), words.flatten(1).gather(1, chosen)
        length, ended = length.gather(1, parent), last == boundary
        history = torch.cat([history.gather(1, parent[:, :, None].expand(-1, -1, position)), last[:, :, None]], dim=2)
        rows = torch.arange(len(parent))[:, None] * beam + parent
        going = ~ended.all(dim=1)
        for image in (~going).nonzero().flatten().tolist():
            found[live[image]] = _hypotheses(history[image], total[image], boundary)
        state = tuple(part[rows[going].flatten()] for part in state)
        live, history, total = live[going], history[going], total[going]
        length, ended = length[going], ended[going]
        if not len(live):
            break
    for image, rows, values in zip(live.tolist(), history, total, strict=True):
        found[image] = _hypotheses(rows, values, boundary)
    return found


@torch.inference_mode()
def sample(decoder: Decoder, longest: int, temperature: float, generator: torch.Generator) -> list[Hypothesis]:
    """A sentence for every image, each word drawn from softmax(logits / temperature); log P is at temperature 1."""
    logits, state = decoder.begin()
    boundary = decoder.boundary
    logits[:, boundary] = -torch.inf
    history, total = [], torch.zeros(len(logits))
    ended = torch.zeros(len(logits), dtype=torch.bool)
    for _ in range(longest):
        logits = _mask(logits, boundary)
        words = torch.multinomial((logits / temperature).softmax(dim=1), 1, generator=generator).flatten()
        words = words.masked_fill(ended, boundary)
        gained = logits.log_softmax(dim=1).gather(1, words[:, None]).flatten()
        total += gained.masked_fill(ended, 0)
        history.append(words)
        ended |= words == boundary
        if ended.all():
            break
        logits, state = decoder.step(words, state)
    rows = torch.stack(history, dim=1)
    return [_hypotheses(row[None], value[None], boundary)[0] for row, value in zip(rows, total, strict=True)]


def _mask(logits: Tensor, boundary: int) -> Tensor:
    """`logits` without the unknown word, which stands before the boundary, in place."""
    logits[:, boundary - 1] = -torch.inf
    return logits


def _best_classes(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Log probabilities and ids, each (k, count), of the most probable classes of logits (k, C).

    The best `count` lie in the `count` chunks with the greatest maxima, so that only these are sorted.
    """
    k, classes = logits.shape
    chunks = classes // CHUNK
    norm = logits.logsumexp(dim=1, keepdim=True)
    if chunks <= count:
        value, index = logits.topk(count)
        return value - norm, index
    whole = logits[:, : chunks * CHUNK].view(k, chunks, CHUNK)
    best = whole.amax(dim=2).topk(count, sorted=False).indices
    ids = (best[:, :, None] * CHUNK + torch.arange(CHUNK)).flatten(1)
    ids = torch.cat([ids, torch.arange(chunks * CHUNK, classes).expand(k, -1)], dim=1)
    value, index = logits.gather(1, ids).topk(count)
    return value - norm, ids.gather(1, index)


def _hypotheses(history: Tensor, total: Tensor, boundary: int) -> list[Hypothesis]:
    """Of one image: history (b, T) padded with boundaries, total (b,)."""
    sentences = ([word for word in row if word != boundary] for row in history.tolist())
    return [Hypothesis(tuple(words), value) for words, value in zip(sentences, total.tolist(), strict=True)]

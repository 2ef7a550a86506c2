"""Decoding sentences from a language model, for many images at once: beam search, greedy, or sampling."""

import itertools
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

State = tuple[Tensor, ...]
"""A decoder's state: tensors whose first axis is the hypotheses."""


class Decoder(Protocol):
    """A language model for n sentences. Classes are V words, the unknown word V, and the boundary V + 1."""

    boundary: int

    def begin(self) -> tuple[Tensor, State]:
        """Logits (n, V + 2) of the first words, and the state after START."""
        ...

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Logits (k, V + 2) and the state after `words` (k,), given `state`."""
        ...


@dataclass(frozen=True)
class BeamSearch:
    """`beam` hypotheses per image (1 is greedy) of at most `longest` words.

    Hypotheses are ranked by log P / L ** `length_power`, where L counts the words and END.
    """

    beam: int
    length_power: float
    longest: int


@dataclass(frozen=True)
class Hypothesis:
    """The ids of a sentence's words, and its natural log probability."""

    words: tuple[int, ...]
    log_probability: float


@torch.inference_mode()
def beam_search(decoder: Decoder, search: BeamSearch) -> list[list[Hypothesis]]:
    """The final `beam` hypotheses of every image, best first.

    All images advance together, and leave when all their hypotheses have ended; results do not depend on the other
    images. A sentence has at least one word, and never the unknown word.
    """
    logits, state = decoder.begin()
    n, beam, boundary = len(logits), min(search.beam, logits.shape[1] - 2), decoder.boundary
    logits[:, boundary] = -torch.inf
    nothing = torch.zeros(n, 1, device=logits.device)
    first = _extend(_mask(logits, boundary), nothing, nothing + 1, nothing.bool(), beam, 0, boundary)
    history, total = first.words[:, :, None], first.total
    length = torch.ones_like(history[:, :, 0])
    ended = torch.zeros_like(length, dtype=torch.bool)
    state = tuple(part.repeat_interleave(beam, dim=0) for part in state)
    live, found = list(range(n)), [[] for _ in range(n)]
    for position in range(1, search.longest):
        logits, state = decoder.step(history[:, :, -1].reshape(-1), state)
        length = torch.where(ended, length, position + 1)
        best = _extend(_mask(logits, boundary), total, length, ended, beam, search.length_power, boundary)
        parent, total = best.parent, best.total
        length, ended = length.gather(1, parent), best.words == boundary
        before = history.gather(1, parent[:, :, None].expand(-1, -1, position))
        history = torch.cat([before, best.words[:, :, None]], dim=2)
        rows = torch.arange(len(parent), device=parent.device)[:, None] * beam + parent
        going = ~ended.all(dim=1)
        goes = going.tolist()
        for place, image in enumerate(live):
            if not goes[place]:
                found[image] = _hypotheses(history[place], total[place], boundary)
        state = tuple(part[rows[going].flatten()] for part in state)
        live = list(itertools.compress(live, goes))
        history, total, length, ended = history[going], total[going], length[going], ended[going]
        if not live:
            break
    for image, rows, values in zip(live, history, total, strict=True):
        found[image] = _hypotheses(rows, values, boundary)
    return found


@torch.inference_mode()
def sample(decoder: Decoder, longest: int, temperature: float, generator: torch.Generator) -> list[Hypothesis]:
    """A sentence for every image, with words sampled from softmax(logits / temperature); log P is at temperature 1.

    An image leaves when its sentence has ended, so that the draws of the others depend on it.
    """
    logits, state = decoder.begin()
    boundary, device = decoder.boundary, logits.device
    logits[:, boundary] = -torch.inf
    live = torch.arange(len(logits), device=device)
    history = torch.full((len(logits), longest), boundary, device=device)
    total = torch.zeros(len(logits), device=device)
    for position in range(longest):
        words = _draw(_mask(logits, boundary) / temperature, generator)
        total[live] += (logits.gather(1, words[:, None]) - logits.logsumexp(dim=1, keepdim=True)).flatten()
        history[live, position] = words
        going = words != boundary
        live, words = live[going], words[going]
        if not len(live) or position + 1 == longest:
            break
        logits, state = decoder.step(words, tuple(part[going] for part in state))
    return [_hypotheses(row[None], value[None], boundary)[0] for row, value in zip(history, total, strict=True)]


def _draw(logits: Tensor, generator: torch.Generator) -> Tensor:
    """(n,) a class of each row of `logits` (n, C), as likely as their softmax: the first up to which the sum of the
    probabilities exceeds a uniform number. torch.multinomial draws a number for every class."""
    sums = logits.softmax(dim=1).cumsum(dim=1)
    drawn = torch.rand(len(logits), 1, generator=generator, device=generator.device).to(sums)
    return torch.searchsorted(sums, drawn * sums[:, -1:], right=True).flatten()


def _mask(logits: Tensor, boundary: int) -> Tensor:
    """`logits`, changed in place, without the unknown word, which is the class before the boundary."""
    logits[:, boundary - 1] = -torch.inf
    return logits


class Extended(NamedTuple):
    """Each (n, beam), best first: the extended hypothesis, its new last word, and its new log probability."""

    parent: Tensor
    words: Tensor
    total: Tensor


def _extend(
    logits: Tensor, total: Tensor, length: Tensor, ended: Tensor, beam: int, power: float, boundary: int
) -> Extended:
    """The best hypotheses of every image after one more word with `logits` (n b, C), by total / length ** power.

    For the b hypotheses of n images, each (n, b): the log probability `total` before that word, the `length` with it,
    and whether it has `ended`; an ended one is kept once, with the word `boundary`.
    """
    n, b = total.shape
    classes = logits.shape[1]
    reached = logits.log_softmax(dim=1).view(n, b, classes).add_(total[:, :, None])
    reached.masked_fill_(ended[:, :, None], -torch.inf)
    reached[:, :, boundary] = torch.where(ended, total, reached[:, :, boundary])
    scores = (reached / length[:, :, None] ** power).flatten(1)
    best = scores.topk(beam).indices
    return Extended(best // classes, best % classes, reached.flatten(1).gather(1, best))


def _hypotheses(history: Tensor, total: Tensor, boundary: int) -> list[Hypothesis]:
    """The hypotheses of one image: history (b, T) padded with boundaries, total (b,)."""
    sentences = ([word for word in row if word != boundary] for row in history.tolist())
    return [Hypothesis(tuple(words), value) for words, value in zip(sentences, total.tolist(), strict=True)]

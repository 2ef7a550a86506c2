"""Decode sentences from a language model for many images at once: beam search, greedy search, or sampling."""

import itertools
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

State = tuple[Tensor, ...]
"""The state of a decoder between two words: tensors whose first axis has one entry per hypothesis."""


class Decoder(Protocol):
    """A language model that predicts the next word of n sentences, one for each image. The V + 2 classes are the ids of
    V words, the unknown word (id V), and the boundary. The attribute `boundary` is the id V + 1 of the boundary, which
    means START as an input and END as a prediction."""

    boundary: int

    def begin(self) -> tuple[Tensor, State]:
        """Return the logits (n, V + 2) of the first words of the n sentences, and the state after START. The caller may
        change the logits."""
        ...

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the logits (k, V + 2) of the words that follow the ids `words` (k,) in k hypotheses, and the state
        after `words`. `state` is the state of these hypotheses before `words`. The caller may change the logits."""
        ...


@dataclass(frozen=True)
class BeamSearch:
    """The settings of a beam search. The search keeps the best `beam` hypotheses per image (1 is greedy search), and
    cuts a sentence after `longest` words. It ranks hypotheses by log P / L ** `length_power`, where L is the number of
    words, plus 1 if the hypothesis has ended with END. With the power 0, hypotheses are ranked by probability."""

    beam: int
    length_power: float
    longest: int


@dataclass(frozen=True)
class Hypothesis:
    """A decoded sentence: the ids of its words without END, and the natural logarithm of its probability, which
    includes END if the sentence was not cut."""

    words: tuple[int, ...]
    log_probability: float


@torch.inference_mode()
def beam_search(decoder: Decoder, search: BeamSearch) -> list[list[Hypothesis]]:
    """Search for the best sentences of each image. Return a list of at most `search.beam` hypotheses, best first, for
    each image of the decoder. BeamSearch says how hypotheses are ranked. Unless `search.length_power` is 0, the best
    hypothesis need not be the most probable hypothesis.

    A sentence has at least one word, and never the unknown word. The probabilities of the other words are normalised
    without the unknown word, and the probabilities of first words also without END. If a sentence is cut after
    `search.longest` words, then its probability does not include END.

    The search advances all images together, and drops an image when all its hypotheses have ended. The result of an
    image does not depend on the other images.
    """
    logits, state = decoder.begin()
    n = len(logits)
    beam = min(search.beam, logits.shape[1] - 2)
    boundary = decoder.boundary
    logits[:, boundary] = -torch.inf
    nothing = torch.zeros(n, 1, device=logits.device)
    first = _extend(_mask(logits, boundary), nothing, nothing + 1, nothing.bool(), beam, 0, boundary)
    history = first.words[:, :, None]
    total = first.total
    length = torch.ones_like(history[:, :, 0])
    ended = torch.zeros_like(length, dtype=torch.bool)
    state = tuple(part.repeat_interleave(beam, dim=0) for part in state)
    live = list(range(n))
    found = [[] for _ in range(n)]
    for position in range(1, search.longest):
        logits, state = decoder.step(history[:, :, -1].reshape(-1), state)
        length = torch.where(ended, length, position + 1)
        best = _extend(_mask(logits, boundary), total, length, ended, beam, search.length_power, boundary)
        parent = best.parent
        total = best.total
        length = length.gather(1, parent)
        ended = best.words == boundary
        before = history.gather(1, parent[:, :, None].expand(-1, -1, position))
        history = torch.cat([before, best.words[:, :, None]], dim=2)
        rows = torch.arange(len(parent), device=parent.device)[:, None] * beam + parent
        going = ~ended.all(dim=1)
        goes = going.tolist()
        for row, image in enumerate(live):
            if not goes[row]:
                found[image] = _hypotheses(history[row], total[row], boundary)
        state = tuple(part[rows[going].flatten()] for part in state)
        live = list(itertools.compress(live, goes))
        history = history[going]
        total = total[going]
        length = length[going]
        ended = ended[going]
        if not live:
            break
    for image, rows, values in zip(live, history, total, strict=True):
        found[image] = _hypotheses(rows, values, boundary)
    return found


@torch.inference_mode()
def sample(decoder: Decoder, longest: int, temperature: float, generator: torch.Generator) -> list[Hypothesis]:
    """Sample one sentence of at most `longest` words for every image of the decoder, word by word from softmax(logits /
    temperature). Return one hypothesis per image. The lower the `temperature`, the more often the most probable words
    are drawn.

    The log probability of a hypothesis is computed at temperature 1. As in `beam_search`, a sentence has at least one
    word, and never the unknown word, and the probabilities are normalised without the excluded classes.

    The random numbers come from `generator`. When the sentence of an image has ended, no more numbers are drawn for
    this image, so the numbers that the other images get depend on the length of this sentence.
    """
    logits, state = decoder.begin()
    boundary = decoder.boundary
    device = logits.device
    logits[:, boundary] = -torch.inf
    live = torch.arange(len(logits), device=device)
    history = torch.full((len(logits), longest), boundary, device=device)
    total = torch.zeros(len(logits), device=device)
    for position in range(longest):
        words = _draw(_mask(logits, boundary) / temperature, generator)
        total[live] += (logits.gather(1, words[:, None]) - logits.logsumexp(dim=1, keepdim=True)).flatten()
        history[live, position] = words
        going = words != boundary
        live = live[going]
        words = words[going]
        if not len(live) or position + 1 == longest:
            break
        logits, state = decoder.step(words, tuple(part[going] for part in state))
    return [_hypotheses(row[None], value[None], boundary)[0] for row, value in zip(history, total, strict=True)]


def _draw(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw the number of one class per row of `logits` (n, C), with the probabilities softmax(logits). Return (n,). The
    function draws one uniform number per row, and returns the first class at which the cumulative probability exceeds
    this number. torch.multinomial is not used, because it would draw a random number for every class."""
    sums = logits.softmax(dim=1).cumsum(dim=1)
    drawn = torch.rand(len(logits), 1, generator=generator, device=generator.device).to(sums)
    return torch.searchsorted(sums, drawn * sums[:, -1:], right=True).flatten()


def _mask(logits: Tensor, boundary: int) -> Tensor:
    """Exclude the unknown word, which is the class before the `boundary`, by setting its `logits` to -inf in place.
    Return `logits`."""
    logits[:, boundary - 1] = -torch.inf
    return logits


class Extended(NamedTuple):
    """The best hypotheses of n images after an extension by one word, best first. Each tensor is (n, beam). `parent` is
    the number of the hypothesis that was extended, from 0, among the previous hypotheses of the image. `words` is the
    id of the new last word, and `total` is the new log probability."""

    parent: Tensor
    words: Tensor
    total: Tensor


def _extend(
    logits: Tensor, total: Tensor, length: Tensor, ended: Tensor, beam: int, power: float, boundary: int
) -> Extended:
    """Extend the b hypotheses of each of n images by one word, and return the best `beam` extended hypotheses of each
    image by log P / length ** power.

    `logits` (n b, C) are the logits of the next word, one of C classes, image after image. `total` (n, b) is the log
    probability of each hypothesis before the next word, `length` (n, b) is its length with the next word, and `ended`
    (n, b) is whether it has ended. A hypothesis that has ended has a single extension, the word `boundary`, which
    changes neither its log probability nor its length.
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
    """Return the b hypotheses of one image. `history` (b, T) has the ids of their words, filled up with the id
    `boundary`, which is removed, and `total` (b,) has their log probabilities."""
    sentences = ([word for word in row if word != boundary] for row in history.tolist())
    return [Hypothesis(tuple(words), value) for words, value in zip(sentences, total.tolist(), strict=True)]

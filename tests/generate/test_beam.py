"""Beam search and sampling against every sentence there is."""

import itertools

import numpy as np
import pytest
import torch

from pipeline.generate.beam import BeamSearch, beam_search, sample

WORDS, UNKNOWN, END = 3, 3, 4


class Chain:
    """n made-up Markov chains of second order: the next word depends on the image and the last two."""

    boundary = END

    def __init__(self, images: list[int]) -> None:
        table = [torch.randn(5, 5, 5, generator=torch.Generator().manual_seed(i)) * 2 for i in images]
        self.table = torch.stack(table)

    def begin(self):
        n = len(self.table)
        state = (torch.arange(n), torch.full((n,), END), torch.full((n,), END))
        return self.table[state].clone(), state

    def step(self, words, state):
        image, _, last = state
        state = (image, last, words)
        return self.table[state].clone(), state


def every_sentence(chain: Chain, image: int, longest: int) -> dict[tuple[int, ...], float]:
    """log P of all sentences of at most `longest` - 1 words, END included, without unknown or empty ones."""
    found = {}
    for length in range(1, longest):
        for words in itertools.product(range(WORDS), repeat=length):
            history, total = [END, END], 0.0
            for position, word in enumerate([*words, END]):
                logits = chain.table[image, history[-2], history[-1]].double().clone()
                if position == 0:
                    logits[END] = -torch.inf
                logits[UNKNOWN] = -torch.inf
                total += float(logits.log_softmax(0)[word])
                history.append(word)
            found[words] = total
    return found


@pytest.mark.parametrize("power", [0.0, 0.7])
def test_a_wide_beam_finds_the_best_of_all_sentences(power: float) -> None:
    chain = Chain([0, 1, 2, 3])
    wide = beam_search(_Wide(chain), BeamSearch(300, power, 6))
    for image in range(4):
        sentences = every_sentence(chain, image, 6)
        best = max(sentences, key=lambda words: sentences[words] / (len(words) + 1) ** power)
        ended = [one for one in wide[image] if len(one.words) < 6]
        first = max(ended, key=lambda one: one.log_probability / (len(one.words) + 1) ** power)
        assert first.words == best
        assert first.log_probability == pytest.approx(sentences[best], abs=1e-4)


class _Wide:
    """`chain` with classes that never occur before the real ones, so that a beam wider than the words is allowed."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.boundary = chain, END + 400

    def begin(self):
        logits, state = self.chain.begin()
        return self._widen(logits), state

    def step(self, words, state):
        logits, state = self.chain.step(
            torch.where(words >= WORDS + 400, words - 400, words.clamp(max=WORDS - 1)), state
        )
        return self._widen(logits), state

    def _widen(self, logits):
        filler = torch.full((len(logits), 400), -1e4)
        return torch.cat([logits[:, :WORDS], filler, logits[:, WORDS:]], dim=1)


def test_greedy_takes_the_best_word_each_time() -> None:
    chain = Chain([5])
    words, history = [], [END, END]
    while len(words) < 7:
        logits = chain.table[0, history[-2], history[-1]].clone()
        logits[[UNKNOWN] if words else [UNKNOWN, END]] = -torch.inf
        history.append(int(logits.argmax()))
        if history[-1] == END:
            break
        words.append(history[-1])
    assert beam_search(chain, BeamSearch(1, 0.0, 7))[0][0].words == tuple(words)


def test_samples_follow_the_probabilities() -> None:
    chain = Chain([7] * 4000)
    drawn = sample(chain, 6, 1.0, torch.Generator().manual_seed(0))
    sentences = every_sentence(chain, 0, 4)
    likely = max(sentences, key=sentences.get)
    share = np.mean([one.words == likely for one in drawn])
    expected = np.exp(sentences[likely])
    assert share == pytest.approx(expected, abs=4 * np.sqrt(expected / 4000))
    same = next(one for one in drawn if one.words == likely)
    assert same.log_probability == pytest.approx(sentences[likely], abs=1e-4)

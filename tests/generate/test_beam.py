"""Beam search is compared with a naive search, and the frequency of a sampled sentence with its probability."""

import numpy as np
import pytest
import torch

from pipeline.generate.beam import BeamSearch, beam_search, sample

WORDS = 3
UNKNOWN = 3
END = 4


class Chain:
    """A decoder with synthetic logits, a Markov chain of second order for each image: the next word depends on the
    image and on the last two words. Images with the same number in `images` have the same chain."""

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


def naive_search(chain: Chain, image: int, search: BeamSearch) -> list[tuple[tuple[int, ...], float]]:
    """Search for the best sentences of the image with the number `image` like `beam_search`, but hypothesis by
    hypothesis.

    Return the word ids and the log probability of each sentence, best first. The words of a sentence that has ended
    include END.
    """
    best: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(search.longest):
        grown = []
        for words, total in best:
            if words[-1:] == (END,):
                grown.append((words, total))
                continue
            logits = chain.table[image, *[END, END, *words][-2:]].double().clone()
            logits[[UNKNOWN] if words else [UNKNOWN, END]] = -torch.inf
            logs = logits.log_softmax(0).tolist()
            grown += [((*words, word), total + log) for word, log in enumerate(logs) if log > -torch.inf]
        best = sorted(grown, key=lambda one: -one[1] / len(one[0]) ** search.length_power)[: search.beam]
    return best


@pytest.mark.parametrize("power", [0.0, 0.7])
@pytest.mark.parametrize("beam", [1, 2, 3])
def test_the_best_sentences_equal_those_of_a_naive_search(beam: int, power: float) -> None:
    chain = Chain(list(range(6)))
    search = BeamSearch(beam, power, 7)
    for image, hypotheses in enumerate(beam_search(chain, search)):
        expected = naive_search(chain, image, search)
        assert [one.words for one in hypotheses] == [tuple(w for w in words if w != END) for words, _ in expected]
        totals = [total for _, total in expected]
        assert [one.log_probability for one in hypotheses] == pytest.approx(totals, abs=1e-4)


def test_samples_follow_the_probabilities() -> None:
    chain = Chain([7] * 4000)
    drawn = sample(chain, 6, 1.0, torch.Generator().manual_seed(0))
    every = naive_search(chain, 0, BeamSearch(1000, 0.0, 6))  # A beam of 1,000 keeps nearly all sentences.
    words, total = next((words[:-1], total) for words, total in every if words[-1] == END)
    share = np.mean([one.words == words for one in drawn])
    assert share == pytest.approx(np.exp(total), abs=4 * np.sqrt(np.exp(total) / 4000))
    same = next(one for one in drawn if one.words == words)
    assert same.log_probability == pytest.approx(total, abs=1e-4)

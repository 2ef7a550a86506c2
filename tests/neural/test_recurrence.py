"""Recurrence and packing are compared with torch's own modules and with naive loops."""

from functools import partial

import numpy as np
import pytest
import torch

from pipeline.models.neural.networks import MeanOfWords, PlainRecurrent, Recurrent
from pipeline.models.neural.recurrence import CELLS, PeepholeRecurrence, Recurrence, pack, recur_by_library
from pipeline.text.vocabulary import Tokens

LENGTHS = [3, 0, 7, 1, 7, 2]


def make_tokens(lengths: list[int], vocabulary: int = 20) -> Tokens:
    rng = np.random.default_rng(0)
    offsets = np.cumsum([0, *lengths])
    return Tokens(rng.integers(vocabulary, size=offsets[-1]).astype(np.int32), offsets)


@pytest.mark.parametrize("name", CELLS)
def test_states_and_gradients_equal_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    relu = {"nonlinearity": "relu"} if name == "relu" else {}
    reference = (torch.nn.RNN if relu else getattr(torch.nn, name.upper()))(5, 4, **relu)
    packed = pack(make_tokens(LENGTHS), unknown=20)
    words = torch.randn(21, 5)
    theirs = words.clone().requires_grad_()
    ours = words.clone().requires_grad_()
    sequence = torch.nn.utils.rnn.PackedSequence(theirs[packed.ids], torch.tensor(packed.sizes))
    expected = reference(sequence)[0].data
    weights = [p.detach().clone().requires_grad_() for p in reference.parameters()]
    states = Recurrence.apply(CELLS[name], packed.sizes, ours[packed.ids], *weights)
    torch.testing.assert_close(states, expected)
    torch.testing.assert_close(recur_by_library(CELLS[name], packed.sizes, words[packed.ids], *weights), expected)
    direction = torch.randn_like(expected)
    (expected * direction).sum().backward()
    (states * direction).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    for weight, parameter in zip(weights, reference.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, parameter.grad)


def peephole_states(packed, words, w, u, p, bias) -> torch.Tensor:
    """Compute equations 1 to 5 of Kiros et al. 2014 for each sentence, word by word, and return the state m (total, K)
    of every word. `words` (total, d) are the vectors of the words. Their rows, and the rows of the result, are in the
    order of `packed.ids`."""
    (xi, xf, xc, xo), (hi, hf, hc, ho), (ci, cf, co) = w.chunk(4), u.chunk(4), p.chunk(3)
    bi, bf, bc, bo = bias.chunk(4)
    found: list = [None] * len(words)
    for sentence in range(len(packed.order)):
        m = c = torch.zeros(u.shape[1], dtype=words.dtype)
        for place in np.flatnonzero(packed.owners.numpy() == sentence):
            x = words[place]
            i = torch.sigmoid(xi @ x + hi @ m + ci @ c + bi)
            f = torch.sigmoid(xf @ x + hf @ m + cf @ c + bf)
            c = f * c + i * torch.tanh(xc @ x + hc @ m + bc)
            m = torch.sigmoid(xo @ x + ho @ m + co @ c + bo) * torch.tanh(c)
            found[place] = m
    return torch.stack(found)


def test_peephole_states_and_gradients_follow_the_equations_of_the_paper() -> None:
    torch.manual_seed(0)
    packed = pack(make_tokens(LENGTHS), unknown=20)
    parts = [torch.randn(shape) for shape in ((len(packed.ids), 5), (16, 5), (16, 4), (12, 4), (16,))]
    ours, theirs = ([part.clone().requires_grad_() for part in parts] for _ in range(2))
    states = PeepholeRecurrence.apply(packed.sizes, *ours)
    expected = peephole_states(packed, *theirs)
    torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-6)
    direction = torch.randn_like(expected)
    (expected * direction).sum().backward()
    (states * direction).sum().backward()
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [MeanOfWords, partial(Recurrent, "gru"), partial(Recurrent, "lstm")])
def test_gradients_of_words_are_deterministic(make) -> None:
    """Many positions have the same word. The gradients of these positions are added in a fixed order, which does not
    depend on the threads."""
    words = torch.randn(21, 256, generator=torch.Generator().manual_seed(0))
    packed = pack(make_tokens([12] * 64), unknown=20)
    encoder = make(words, 256, dropout=0)
    found = []
    for _ in range(4):
        encoder.zero_grad()
        encoder(packed).square().sum().backward()
        found.append(encoder.words.grad.clone())
    assert all(torch.equal(found[0], one) for one in found[1:])


@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid", "identity"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_plain_network_follows_the_equation_of_socher(activation: str, bias: bool) -> None:
    """The expected states h_t = f(W_h h_(t-1) + W_x x_t) are computed word by word, and the expected gradients by
    torch. Without `bias`, only the word vectors, W_x and W_h are trained."""
    torch.manual_seed(0)
    encoder = PlainRecurrent(torch.randn(21, 5), 4, 0.0, activation, bias)
    tokens = make_tokens(LENGTHS)
    f = {"identity": lambda h: h}.get(activation) or getattr(torch, activation)
    expected = []
    for ids in tokens:
        h = torch.zeros(4)
        for word in list(ids) or [20]:
            h = f(encoder.u @ h + encoder.w @ encoder.words[word] + encoder.bias + encoder.hidden_bias)
        expected.append(h)
    packed = pack(tokens, unknown=20)
    trained = [p for p in encoder.parameters() if p.requires_grad]
    found = encoder(packed)
    expected = torch.stack(expected)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(found.shape)
    ours, theirs = (torch.autograd.grad((h * weights).sum(), trained) for h in (found, expected))
    assert len(trained) == (5 if bias else 3)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)

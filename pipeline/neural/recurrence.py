"""Recurrent cells over packed sentences: no padding enters a product, and weight gradients are one product each."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

State = tuple[Tensor, ...]
"""What a cell carries from word to word, each (k, H) float32; the first is the hidden state."""


class Cell(NamedTuple):
    """`gates` blocks of H columns from input and from hidden state, `states` tensors carried on, and the `step`:
    (input part (k, gates H), hidden part (k, gates H), state) to the next state."""

    gates: int
    states: int
    step: Callable[[Tensor, Tensor, State], State]


def _step_rnn(x: Tensor, a: Tensor, state: State) -> State:
    return ((x + a).float().tanh(),)


def _step_lstm(x: Tensor, a: Tensor, state: State) -> State:
    """Equations 1 to 5 of seed 001, without the cell's connections to its gates (Wci, Wcf, Wco)."""
    i, f, u, o = (x + a).float().chunk(4, dim=1)
    c = f.sigmoid() * state[1] + i.sigmoid() * u.tanh()
    return o.sigmoid() * c.tanh(), c


def _step_gru(x: Tensor, a: Tensor, state: State) -> State:
    (xr, xz, xn), (ar, az, an) = x.float().chunk(3, dim=1), a.float().chunk(3, dim=1)
    z = (xz + az).sigmoid()
    n = (xn + (xr + ar).sigmoid() * an).tanh()
    return (n + z * (state[0] - n),)


CELLS: dict[str, Cell] = {"rnn": Cell(1, 1, _step_rnn), "gru": Cell(3, 1, _step_gru), "lstm": Cell(4, 2, _step_lstm)}


class Recurrence(torch.autograd.Function):
    """The hidden states (total, H) float32 after every word of n sentences, packed as the words are.

    apply(cell, sizes, words, w, u, bias, hidden_bias): `words` (total, d) holds the first words of all n sentences,
    longest sentence first, then the second words, and so on; sizes[t] of them have a word t. w (gates H, d) and
    u (gates H, H) are the weights of input and hidden state; the biases are (gates H,), that of the input also
    (total, gates H), one for every word. Products are made in the dtype of `words`, everything else in float32. Values
    and gradients are those of torch.nn.{RNN,GRU,LSTM}.

    Each step's small graph is kept and run backwards by hand, so that the gradient of u is one product over all words
    where torch's own loop makes, and adds up, a (gates H, H) matrix for every position.
    """

    @staticmethod
    def forward(
        ctx: Any, cell: Cell, sizes: Sequence[int], words: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor
    ) -> Tensor:
        inputs = torch.addmm(b, words, w.T)
        states = words.new_empty(len(words), u.shape[1], dtype=torch.float32)
        before = torch.empty_like(states, dtype=words.dtype)
        state: State = (states.new_zeros(sizes[0], u.shape[1]),) * cell.states
        steps, start, learning = [], 0, any(ctx.needs_input_grad)
        for size in sizes:
            rows = slice(start, start + size)
            state = tuple(t[:size].detach() for t in state)
            before[rows] = state[0]
            hidden = torch.addmm(c, before[rows], u.T)
            with torch.set_grad_enabled(learning):
                leaves = [t.detach().requires_grad_(learning) for t in (inputs[rows], hidden, *state)]
                state = cell.step(leaves[0], leaves[1], tuple(leaves[2:]))
            if learning:
                steps.append((rows, leaves, state))
            states[rows] = state[0].detach()
            start += size
        ctx.save_for_backward(words, w, u, before)
        ctx.steps, ctx.biases = steps, b.dim()
        return states

    @staticmethod
    def backward(ctx: Any, d_states: Tensor) -> tuple[Tensor | None, ...]:
        words, w, u, before = ctx.saved_tensors
        d_inputs = words.new_empty(len(words), len(u))
        d_hidden = torch.empty_like(d_inputs)
        d_next: State = ()
        while ctx.steps:
            rows, leaves, state = ctx.steps.pop()
            d_state = [d_states[rows].clone(), *(torch.zeros_like(t) for t in state[1:])]
            for total, part in zip(d_state, d_next, strict=False):
                total[: len(part)] += part
            grads = torch.autograd.grad(state, leaves, d_state, allow_unused=True)
            d_inputs[rows], d_hidden[rows] = grads[:2]
            through = torch.mm(d_hidden[rows], u).float()
            d_next = (through if grads[2] is None else grads[2] + through, *grads[3:])
        return (
            None, None, d_inputs @ w, d_inputs.T @ words, d_hidden.T @ before,
            d_inputs.sum(0) if ctx.biases == 1 else d_inputs, d_hidden.sum(0),
        )  # fmt: skip

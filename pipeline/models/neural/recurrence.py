"""Sentences of different lengths, packed position by position without padding, and recurrent cells that read them."""

import warnings
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from pipeline.compute.ragged import offsets_of, runs
from pipeline.text.vocabulary import Tokens


class Packed(NamedTuple):
    """The words of n sentences in packed order: first the first words of all sentences, then all second words, and so
    on.

    Words at the same position are in the order of the lengths of their sentences. The word of the longest sentence
    comes first.

    - `ids` (total,) are the ids of the words, and `owners` (total,) the numbers of their sentences.
    - `sizes` has the number of sentences with a word at each position.
    - `order` (n,) are the numbers of the sentences, longest first.
    - `lengths` (n,), at least 1, are the numbers of words of the sentences in their original order.
    - `rows` (total,) are the packed positions of all words, sentence after sentence in the original order. `offsets` (n
      + 1,) divides `rows` into sentences: the words of sentence i are rows[offsets[i] : offsets[i + 1]].
    - `last` (n,) are the packed positions of the last words of the sentences.
    - `mirrored` (total,) has a packed position for each word: the position of the word in the same sentence that is as
      far from the end as this word is from the beginning.
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
    """Pack all sentences of `tokens`. A sentence without words becomes the single word with the id `unknown`."""
    lengths = np.maximum(tokens.lengths, 1)
    order = np.argsort(-lengths, kind="stable")
    sizes = len(lengths) - np.searchsorted(np.sort(lengths), np.arange(lengths.max(initial=0)), "right")
    position = np.repeat(np.arange(len(sizes)), sizes)
    sentence = order[runs(np.zeros(len(sizes), np.int64), sizes)]
    has_words = tokens.lengths[sentence] > 0
    ids = np.full(len(position), unknown, np.int64)
    ids[has_words] = tokens.ids[(tokens.offsets[sentence] + position)[has_words]]
    offsets = offsets_of(lengths)
    rows = np.argsort(sentence, kind="stable")
    ends = offsets[1:] - 1
    tensors = (torch.from_numpy(array) for array in (sentence, rows[ends[sentence] - position], rows, rows[ends]))
    return Packed(
        torch.from_numpy(ids), sizes.tolist(), torch.from_numpy(order), torch.from_numpy(lengths), offsets, *tensors
    )


class Activation(NamedTuple):
    """An activation function f.

    `apply` computes f in place, and `slope` computes the derivative of f from the value of f.
    """

    apply: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


ACTIVATIONS = {
    "tanh": Activation(torch.tanh_, lambda h: 1 - h.square()),
    "relu": Activation(torch.relu_, lambda h: (h > 0).to(h.dtype)),
    "sigmoid": Activation(torch.sigmoid_, lambda h: h * (1 - h)),
    "identity": Activation(lambda h: h, torch.ones_like),
}


sigmoid_backward = torch.ops.aten.sigmoid_backward
"""Function that computes the gradient of the argument of a sigmoid in one pass. Its first argument is the gradient of
the sigmoid's value, and its second argument is this value."""
tanh_backward = torch.ops.aten.tanh_backward
"""Function that computes the gradient of the argument of a tanh in one pass. Its first argument is the gradient of the
tanh's value, and its second argument is this value."""
State = tuple[Tensor, ...]
"""The tensors (k, H) float32 that a cell passes from word to word. The first is the hidden state."""
Gradients = tuple[State, State | None, tuple[Tensor | None, ...]]
"""The gradients that RecurrentCell.back returns: for the input part, for the hidden part, and for the previous
state."""


class RecurrentCell(NamedTuple):
    """A recurrent cell with the hidden dimension H, for a step over k sentences at once.

    `gates` is the number of blocks of H columns in the input part x = W x_t + b and in the hidden part a = U h + c,
    both (k, gates H). `states` is the number of state tensors (k, H).

    - `step(x, a, state)` returns the next state, and the tensors that `back` needs.
    - `back(tensors, gradients of the next state)` returns the gradients of x and of a, in blocks (k, H), and of the
      previous state, without the gradient through a. None means zero, but None for a means that the gradient of a
      equals the gradient of x.
    - `library` is the function of torch that computes all words at once, on a GPU by cuDNN, or None if torch lacks it.
    """

    gates: int
    states: int
    step: Callable[[Tensor, Tensor, State], tuple[State, State]]
    back: Callable[[State, Sequence[Tensor]], Gradients]
    library: Callable[..., tuple[Tensor, ...]] | None = None


def plain_cell(activation: str) -> RecurrentCell:
    """Return the cell h = f(x + a), where x is the input part, a is the hidden part, and f is the function in
    ACTIVATIONS with the name `activation`."""
    apply, slope = ACTIVATIONS[activation]

    def step(x: Tensor, a: Tensor, state: State) -> tuple[State, State]:
        h = apply((x + a).float())
        return (h,), (h,)

    def back(kept: State, d: Sequence[Tensor]) -> Gradients:
        return (d[0] * slope(kept[0]),), None, (None,)

    return RecurrentCell(1, 1, step, back, {"tanh": torch.rnn_tanh, "relu": torch.rnn_relu}.get(activation))


def _step_lstm(x: Tensor, a: Tensor, state: State) -> tuple[State, State]:
    """Compute one step of an LSTM: Kiros et al. 2014, eq. 1 to 5, without the connections from the memory cell to the
    gates (W_ci, W_cf, W_co), which PeepholeRecurrence has.

    `x` and `a` (k, 4 H) are the terms of the input and of the hidden state for the gates i, f, u and o, side by side.
    `state` has the hidden state, which is not read, and the memory cell, each (k, H). Return the new state, and the
    values that the gradient needs.
    """
    i, f, u, o = (x + a).float().chunk(4, dim=1)
    i = i.sigmoid()
    f = f.sigmoid()
    u = u.tanh()
    o = o.sigmoid()
    c = torch.addcmul(f * state[1], i, u)
    t = c.tanh()
    return (o * t, c), (i, f, u, o, t, state[1])


def _back_lstm(kept: State, d: Sequence[Tensor]) -> Gradients:
    i, f, u, o, t, before = kept
    d_c = d[1] + tanh_backward(d[0] * o, t)
    gates = sigmoid_backward(d_c * u, i), sigmoid_backward(d_c * before, f), tanh_backward(d_c * i, u)
    return (*gates, sigmoid_backward(d[0] * t, o)), None, (None, d_c * f)


def _step_gru(x: Tensor, a: Tensor, state: State) -> tuple[State, State]:
    (xr, xz, xn), (ar, az, an) = x.float().chunk(3, dim=1), a.float().chunk(3, dim=1)
    r = (xr + ar).sigmoid()
    z = (xz + az).sigmoid()
    n = torch.addcmul(xn, r, an).tanh()
    return (n + z * (state[0] - n),), (r, z, n, an, state[0])


def _back_gru(kept: State, d: Sequence[Tensor]) -> Gradients:
    r, z, n, an, before = kept
    through = d[0] * z
    d_n = tanh_backward(d[0] - through, n)
    d_r = sigmoid_backward(d_n * an, r)
    d_z = sigmoid_backward(d[0] * (before - n), z)
    return (d_r, d_z, d_n), (d_r, d_z, d_n * r), (through,)


CELLS: dict[str, RecurrentCell] = {
    "rnn": plain_cell("tanh"),
    "relu": plain_cell("relu"),
    "gru": RecurrentCell(3, 1, _step_gru, _back_gru, torch.gru),
    "lstm": RecurrentCell(4, 2, _step_lstm, _back_lstm, torch.lstm),
}


def recur(
    cell: RecurrentCell, sizes: Sequence[int], precision: torch.dtype,
    words: Tensor, w: Tensor, u: Tensor, bias: Tensor, hidden_bias: Tensor,
) -> Tensor:  # fmt: skip
    """Compute the hidden states (total, H) float32 of `cell` after each packed word, with products in `precision`.

    The class Recurrence describes the other arguments.

    On a GPU, cuDNN computes the states if torch has a library function for the cell and `bias` has one dimension. cuDNN
    needs a few kernels, but `Recurrence` needs about twenty per position. On a CPU, torch's own function takes 1.05 to
    1.26 times as long as `Recurrence`. cuDNN always gets float32. In training with `bfloat16`, it may multiply in TF32,
    which has more bits than bfloat16.
    """
    tensors = words, w, u, bias, hidden_bias
    if words.is_cuda and cell.library is not None and bias.dim() == 1:
        return recur_by_library(cell, sizes, *(tensor.float() for tensor in tensors))
    return Recurrence.apply(cell, sizes, *(tensor.to(precision) for tensor in tensors))


def recur_by_library(cell: RecurrentCell, sizes: Sequence[int], words: Tensor, *weights: Tensor) -> Tensor:
    """Compute the hidden states (total, H) float32 of `cell` after each packed word by `cell.library`, the function of
    torch, which must exist. `weights` are `w`, `u`, `bias` and `hidden_bias`, as in the class Recurrence."""
    assert cell.library is not None
    first = (words.new_zeros(1, sizes[0], weights[1].shape[1]),) * cell.states
    with warnings.catch_warnings():  # torch warns of a copy of the weights, which takes microseconds.
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        return cell.library(
            words, torch.tensor(sizes), first if cell.states > 1 else first[0], weights,
            has_biases=True, num_layers=1, dropout=0.0, train=torch.is_grad_enabled(), bidirectional=False,
        )[0]  # fmt: skip


class KeptState(FunctionCtx):
    """The values that the forward pass of a recurrence keeps for its backward pass.

    `steps` has the tensors that `step` of the cell kept for `back`, position by position. `input_bias_dimensions` is 1
    for a bias (gates H,), and 2 for a bias with a row for each word.
    """

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    steps: list[State]
    cell: RecurrentCell
    sizes: Sequence[int]
    input_bias_dimensions: int


class Recurrence(torch.autograd.Function):
    """The recurrence of a cell over the words of n sentences.

    `apply(cell, sizes, words, w, u, bias, hidden_bias)` returns the hidden states (total, H) float32 after each word,
    in packed order. `words` (total, d) and `sizes` are packed as in `Packed`. `w` (gates H, d) and `u` (gates H, H) are
    the weights of the input and of the hidden state. The biases are (gates H,). The bias of the input may also be
    (total, gates H), with a row for each word. Products are computed in the dtype of `words`, and everything else in
    float32. Values and gradients equal the values and gradients of torch.nn.RNN, GRU and LSTM.

    The gradient of `u` is one product over all words. torch's own loop instead adds a matrix (gates H, H) to this
    gradient at each position.
    """

    @staticmethod
    def forward(
        ctx: KeptState,
        cell: RecurrentCell,
        sizes: Sequence[int],
        words: Tensor,
        w: Tensor,
        u: Tensor,
        b: Tensor,
        c: Tensor,
    ) -> Tensor:
        inputs = torch.addmm(b, words, w.T)
        states = words.new_empty(len(words), u.shape[1], dtype=torch.float32)
        before = torch.empty_like(states, dtype=words.dtype)
        state: State = (states.new_zeros(sizes[0], u.shape[1]),) * cell.states
        ctx.steps = []
        learning = any(ctx.needs_input_grad)
        for rows in row_slices(sizes):
            state = tuple(t[: rows.stop - rows.start] for t in state)
            before[rows] = state[0]
            state, kept = cell.step(inputs[rows], torch.addmm(c, before[rows], u.T), state)
            if learning:
                ctx.steps.append(kept)
            states[rows] = state[0]
        ctx.save_for_backward(words, w, u, before)
        ctx.cell = cell
        ctx.sizes = sizes
        ctx.input_bias_dimensions = b.dim()
        return states

    @staticmethod
    def backward(ctx: KeptState, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (d_states,) = gradients
        words, w, u, before = ctx.saved_tensors
        cell = ctx.cell
        d_inputs = words.new_empty(len(words), len(u))
        d_hidden = d_inputs
        d_next: tuple[Tensor | None, ...] = ()
        for rows in reversed(row_slices(ctx.sizes)):
            d_state = [d_states[rows].clone(), *(torch.zeros_like(d_states[rows]) for _ in range(cell.states - 1))]
            for total, gradient in zip(d_state, d_next, strict=False):
                if gradient is not None:
                    total[: len(gradient)] += gradient
            d_x, d_a, (direct, *others) = cell.back(ctx.steps.pop(), d_state)
            _copy_blocks(d_inputs[rows], d_x)
            if d_a is not None:
                d_hidden = torch.empty_like(d_inputs) if d_hidden is d_inputs else d_hidden
                _copy_blocks(d_hidden[rows], d_a)
            through = torch.mm(d_hidden[rows], u).float()
            d_next = (through if direct is None else through.add_(direct), *others)
        return (
            None, None, d_inputs @ w, d_inputs.T @ words, d_hidden.T @ before,
            d_inputs.sum(0) if ctx.input_bias_dimensions == 1 else d_inputs, d_hidden.sum(0),
        )  # fmt: skip


def _copy_blocks(rows: Tensor, blocks: State) -> None:
    """Copy the `blocks`, (k, H) each, side by side into the columns of `rows` (k, number of blocks times H)."""
    for columns, block in zip(rows.chunk(len(blocks), dim=1), blocks, strict=True):
        columns.copy_(block)


def row_slices(sizes: Sequence[int]) -> list[slice]:
    """Return, for each position in a sentence, the slice of the packed words that are at this position. `sizes` are as
    in Packed."""
    ends = list(accumulate(sizes))
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


class PeepholeRecurrence(torch.autograd.Function):
    """The recurrence of an LSTM whose gates read the memory cell (Kiros et al. 2014, eq. 1 to 5).

    `apply(sizes, words, w, u, p, bias)` returns the hidden states (total, H) float32 after each word of n sentences, in
    packed order. `words` (total, d) and `sizes` are packed as in `Packed`. `w` (4 H, d), `u` (4 H, H) and `bias` (4 H,)
    have blocks for I, F, the new content and O, in this order. `p` (3 H, H) has the transposes of W_ci, W_cf and W_co.
    W_ci, W_cf and W_co are full matrices, as in the paper. Graves 2013, which the paper cites, has diagonal matrices.
    Products are computed in the dtype of `words`, and everything else in float32. The gradient of each weight is one
    product over all words.
    """

    @staticmethod
    def forward(
        ctx: KeptState, sizes: Sequence[int], words: Tensor, w: Tensor, u: Tensor, p: Tensor, b: Tensor
    ) -> Tensor:
        k = u.shape[1]
        inputs = torch.addmm(b, words, w.T).float()
        early = p[: 2 * k]
        late = p[2 * k :]
        gates = inputs.new_empty(len(words), 4 * k)
        hidden, cells, before_hidden, before_cells = (inputs.new_zeros(len(words), k) for _ in range(4))
        h = c = inputs.new_zeros(sizes[0], k)
        for rows in row_slices(sizes):
            count = rows.stop - rows.start
            h, c = before_hidden[rows], before_cells[rows] = h[:count], c[:count]
            a = inputs[rows] + (h.to(u.dtype) @ u.T).float()
            a[:, : 2 * k] += (c.to(p.dtype) @ early.T).float()
            i = a[:, :k].sigmoid_()
            f = a[:, k : 2 * k].sigmoid_()
            new = a[:, 2 * k : 3 * k].tanh_()
            c = torch.addcmul(f * c, i, new)
            o = a[:, 3 * k :].add_((c.to(p.dtype) @ late.T).float()).sigmoid_()
            h = o * c.tanh()
            gates[rows], cells[rows], hidden[rows] = a, c, h
        ctx.save_for_backward(words, w, u, p, gates, cells, before_hidden, before_cells)
        ctx.sizes = sizes
        return hidden

    @staticmethod
    def backward(ctx: KeptState, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (d_states,) = gradients
        words, w, u, p, gates, cells, before_hidden, before_cells = ctx.saved_tensors
        k = u.shape[1]
        d_gates = torch.empty_like(gates)
        early = p[: 2 * k]
        late = p[2 * k :]
        d_hidden = d_states.clone()
        d_cells = torch.zeros_like(cells)
        slices = row_slices(ctx.sizes)
        for position in reversed(range(len(slices))):
            rows = slices[position]
            i, f, new, o = gates[rows].chunk(4, dim=1)
            t = cells[rows].tanh()
            d_h = d_hidden[rows]
            d = d_gates[rows]
            d[:, 3 * k :] = sigmoid_backward(d_h * t, o)
            d_c = d_cells[rows] + tanh_backward(d_h * o, t) + (d[:, 3 * k :].to(p.dtype) @ late).float()
            d[:, :k] = sigmoid_backward(d_c * new, i)
            d[:, k : 2 * k] = sigmoid_backward(d_c * before_cells[rows], f)
            d[:, 2 * k : 3 * k] = tanh_backward(d_c * i, new)
            if position:
                earlier = slices[position - 1]
                same = slice(earlier.start, earlier.start + rows.stop - rows.start)
                d_hidden[same] += (d.to(u.dtype) @ u).float()
                d_cells[same] += d_c * f + (d[:, : 2 * k].to(p.dtype) @ early).float()
        d_a, seen, now = (x.to(u.dtype) for x in (d_gates, before_cells, cells))
        d_p = torch.cat([d_a[:, : 2 * k].T @ seen, d_a[:, 3 * k :].T @ now])
        return None, d_a @ w, d_a.T @ words, d_a.T @ before_hidden.to(u.dtype), d_p, d_a.sum(0)

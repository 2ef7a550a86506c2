"""The LSTM whose gates see the cell (Kiros et al. 2014, eq. 1 to 5), over packed sentences."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.models.neural.recurrence import row_slices, sigmoid_backward, tanh_backward


class PeepholeRecurrence(torch.autograd.Function):
    """The hidden states (total, H) float32 after every word of n sentences, in packed order.

    apply(sizes, words, w, u, p, bias): `words` (total, d) and `sizes` are packed as in `Packed`; w (4 H, d), u (4 H, H)
    and bias (4 H,) hold the blocks of I, F, the new content and O, in this order; p (3 H, H) is W_ci, W_cf and W_co,
    transposed. The paper multiplies by matrices; Graves 2013, whom it cites, has diagonal ones. Products are computed
    in the dtype of `words`, all else in float32. Each weight's gradient is one product over all words.
    """

    @staticmethod
    def forward(ctx: Any, sizes: Sequence[int], words: Tensor, w: Tensor, u: Tensor, p: Tensor, b: Tensor) -> Tensor:
        k, inputs = u.shape[1], torch.addmm(b, words, w.T).float()
        early, late = p[: 2 * k], p[2 * k :]
        gates = inputs.new_empty(len(words), 4 * k)
        hidden, cells, before_hidden, before_cells = (inputs.new_zeros(len(words), k) for _ in range(4))
        h = c = inputs.new_zeros(sizes[0], k)
        for rows in row_slices(sizes):
            count = rows.stop - rows.start
            h, c = before_hidden[rows], before_cells[rows] = h[:count], c[:count]
            a = inputs[rows] + (h.to(u.dtype) @ u.T).float()
            a[:, : 2 * k] += (c.to(p.dtype) @ early.T).float()
            i, f, new = a[:, :k].sigmoid_(), a[:, k : 2 * k].sigmoid_(), a[:, 2 * k : 3 * k].tanh_()
            c = torch.addcmul(f * c, i, new)
            o = a[:, 3 * k :].add_((c.to(p.dtype) @ late.T).float()).sigmoid_()
            h = o * c.tanh()
            gates[rows], cells[rows], hidden[rows] = a, c, h
        ctx.save_for_backward(words, w, u, p, gates, cells, before_hidden, before_cells)
        ctx.sizes = sizes
        return hidden

    @staticmethod
    def backward(ctx: Any, d_states: Tensor) -> tuple[Tensor | None, ...]:
        words, w, u, p, gates, cells, before_hidden, before_cells = ctx.saved_tensors
        k, d_gates = u.shape[1], torch.empty_like(gates)
        early, late = p[: 2 * k], p[2 * k :]
        d_hidden, d_cells = d_states.clone(), torch.zeros_like(cells)
        slices = row_slices(ctx.sizes)
        for position in reversed(range(len(slices))):
            rows = slices[position]
            i, f, new, o = gates[rows].chunk(4, dim=1)
            t, d_h, d = cells[rows].tanh(), d_hidden[rows], d_gates[rows]
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

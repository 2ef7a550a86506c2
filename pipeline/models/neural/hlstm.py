"""H-LSTM units over phrase trees, height by height (Niu et al. 2017, eq. 2 to 8)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.models.neural.dropout import dropout
from pipeline.models.neural.sentences import initial
from pipeline.models.neural.tree_levels import Levels, forest, level
from pipeline.models.neural.tree_rnn import by_kind
from pipeline.text.trees import Trees


class HierarchicalRecurrence(torch.autograd.Function):
    """The hidden states (total, K) float32 of all nodes, rows as in `levels`.

    apply(levels, inputs, u): `inputs` (total, 4 K) float32 are W x_j + b of the gates i, o, u, f side by side; u[1]
    (4 K, K) multiplies the states of children that are noun phrases, u[0] those of the others. Products are computed in
    the dtype of `u`, all else in float32. A child's product is added to its parent's sums at once, so that h-hat and
    h-bar of eq. 2 are never stored.
    """

    @staticmethod
    def forward(ctx: Any, levels: Levels, inputs: Tensor, u: Tensor) -> Tensor:
        k = u.shape[2]
        gates, turned = inputs[:, : 3 * k].clone(), u.mT.unbind()
        cells, hidden, forgets = (inputs.new_zeros(len(inputs), k) for _ in range(3))
        for start, joined, stop, groups in levels.levels:
            rows, edges = slice(start, stop), slice(start, joined)
            gates[rows, : 2 * k].sigmoid_()
            gates[rows, 2 * k :].tanh_()
            i, o, new = gates[rows].chunk(3, dim=1)
            cells[rows] += i * new
            hidden[rows] = o * cells[rows].tanh()
            if groups:
                above = levels.parents[edges]
                sums = by_kind(hidden[edges], turned, groups, u.dtype)
                forgets[edges] = (inputs[above, 3 * k :] + sums[:, 3 * k :]).sigmoid_()
                gates.index_add_(0, above, sums[:, : 3 * k])
                cells.index_add_(0, above, forgets[edges] * cells[edges])
        ctx.save_for_backward(u, gates, cells, hidden, forgets)
        ctx.levels = levels
        return hidden

    @staticmethod
    def backward(ctx: Any, d_states: Tensor) -> tuple[Tensor | None, ...]:
        (u, gates, cells, hidden, forgets), levels = ctx.saved_tensors, ctx.levels
        k, straight = u.shape[2], u.unbind()
        d_hidden, d_cells = d_states.clone(), torch.zeros_like(cells)
        d_inputs, d_sums = gates.new_zeros(len(gates), 4 * k), gates.new_empty(len(gates), 4 * k)
        d_gates = d_inputs[:, : 3 * k]
        for start, joined, stop, groups in reversed(levels.levels):
            rows, edges = slice(start, stop), slice(start, joined)
            if groups:
                above, f = levels.parents[edges], forgets[edges]
                d_above = d_cells[above]
                d_forgets = d_above * cells[edges] * f * (1 - f)
                d_sums[edges, : 3 * k], d_sums[edges, 3 * k :] = d_gates[above], d_forgets
                d_inputs[:, 3 * k :].index_add_(0, above, d_forgets)
                d_hidden[edges] += by_kind(d_sums[edges], straight, groups, u.dtype)
                d_cells[edges] = d_above * f
            i, o, new = gates[rows].chunk(3, dim=1)
            through = cells[rows].tanh()
            d_cells[rows] += d_hidden[rows] * o * (1 - through.square())
            d_gates[rows, :k] = d_cells[rows] * new * i * (1 - i)
            d_gates[rows, k : 2 * k] = d_hidden[rows] * through * o * (1 - o)
            d_gates[rows, 2 * k :] = d_cells[rows] * i * (1 - new.square())
        d_u = torch.zeros_like(u)
        for kind, rows in levels.kinds:
            torch.mm(d_sums[rows].to(u.dtype).T, hidden[rows].to(u.dtype), out=d_u[kind])
        return None, d_inputs, d_u


class HierarchicalLSTM(nn.Module):
    """The states of all nodes of phrase trees; words enter at the leaves.

    Niu et al. 2017 to code: W_w `words`, W `w` (4 K, d), b `bias`, U-bar `u`[0], U-hat `u`[1]; the gates are in the
    order i, o, u, f. A child with the label `noun_phrase` is a noun phrase.
    """

    def __init__(self, words: Tensor, dimensions: int, dropout: float, noun_phrase: int) -> None:
        """`words` (V + 1, d): the word vectors, the unknown word's last."""
        super().__init__()
        self.dropout, self.noun_phrase, self.precision = dropout, noun_phrase, torch.float32
        self.words = nn.Parameter(words)
        self.w, self.u = initial(4 * dimensions, words.shape[1]), initial(2, 4 * dimensions, dimensions)
        self.bias = nn.Parameter(torch.zeros(4 * dimensions))

    def arrange(self, trees: Trees) -> Levels:
        """`trees` in the form that `forward` takes."""
        nodes = forest(trees, len(self.words) - 1)
        return level(nodes, (nodes.labels == self.noun_phrase).astype(int), counts=None)

    def forward(self, levels: Levels) -> Tensor:
        """(total, K) float32."""
        leaves = levels.words[: levels.levels[0].stop] if levels.levels else levels.words
        words = dropout(functional.embedding(leaves, self.words), self.dropout, self.training)
        inner = self.bias.expand(len(levels.words) - len(leaves), -1)
        first = (words.to(self.precision) @ self.w.T.to(self.precision)).float() + self.bias
        return HierarchicalRecurrence.apply(levels, torch.cat([first, inner]), self.u.to(self.precision))

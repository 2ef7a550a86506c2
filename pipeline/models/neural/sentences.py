"""Sentence encoders: from packed words to one vector a sentence (Kiros et al. 2014, section 2.2)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.models.neural.dropout import dropout
from pipeline.models.neural.packing import Packed
from pipeline.models.neural.peepholes import PeepholeRecurrence
from pipeline.models.neural.recurrence import CELLS, Recurrence, plain_cell

INITIAL = 0.08
"""Initial weights are uniform in [-INITIAL, INITIAL] (Kiros et al. 2014, section 3.1)."""


def initial(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).uniform_(-INITIAL, INITIAL))


class MeanOfWords(nn.Module):
    """v = mean of the sentence's word vectors, which are vectors of the joint space themselves.

    The mean is computed in float32, whatever `precision` says.
    """

    def __init__(self, words: Tensor, dimensions: int | None, dropout: float) -> None:
        """`words` (V + 1, K): the word vectors, the unknown word's last. K is the dimension of the joint space."""
        super().__init__()
        self.words, self.dropout, self.precision = nn.Parameter(words), dropout, torch.float32

    def forward(self, packed: Packed) -> Tensor:
        """(n, K) float32, not of unit length."""
        starts = packed.lengths.cumsum(0) - packed.lengths
        mean = functional.embedding_bag(packed.ids[packed.rows], self.words, starts, mode="mean")
        return dropout(mean, self.dropout, self.training)


class LinearOfWords(MeanOfWords):
    """v = W mean of the sentence's word vectors, W (K, d) `projection`."""

    def __init__(self, words: Tensor, dimensions: int, dropout: float) -> None:
        super().__init__(words, dimensions, dropout)
        self.projection = initial(dimensions, words.shape[1])

    def forward(self, packed: Packed) -> Tensor:
        return super().forward(packed) @ self.projection.T


class Recurrent(nn.Module):
    """v = the hidden state after the sentence's last word, of the cell `rnn`, `gru` or `lstm`.

    Kiros et al. 2014 to code: W_T `words`, W_x `w`, W_h `u`, K the dimension of the hidden state. `precision` is the
    dtype of the products; weights are float32.
    """

    def __init__(self, cell: str, words: Tensor, dimensions: int, dropout: float) -> None:
        """`words` (V + 1, d): the word vectors, the unknown word's last."""
        super().__init__()
        self.cell, self.dropout, self.precision = CELLS[cell], dropout, torch.float32
        rows = self.cell.gates * dimensions
        self.words = nn.Parameter(words)
        self.w, self.u = initial(rows, words.shape[1]), initial(rows, dimensions)
        self.bias, self.hidden_bias = (nn.Parameter(torch.zeros(rows)) for _ in range(2))

    def states(self, packed: Packed) -> Tensor:
        """(total, K) float32: the hidden state after every word, in packed order."""
        words = dropout(functional.embedding(packed.ids, self.words), self.dropout, self.training)
        parts = (words, self.w, self.u, self.bias, self.hidden_bias)
        return Recurrence.apply(self.cell, packed.sizes, *(part.to(self.precision) for part in parts))

    def forward(self, packed: Packed) -> Tensor:
        """(n, K) float32, not of unit length."""
        return dropout(self.states(packed)[packed.last], self.dropout, self.training)


class PlainRecurrent(Recurrent):
    """h_t = f(W_h h_(t-1) + W_x x_t), and v the last of these (Socher et al. 2014, section 6); with `bias` f's argument
    has one. Paper to code: W_x `w`, W_h `u`, f `activation`."""

    def __init__(self, words: Tensor, dimensions: int, dropout: float, activation: str, bias: bool) -> None:
        super().__init__("rnn", words, dimensions, dropout)
        self.cell = plain_cell(activation)
        for one in (self.bias, self.hidden_bias):
            one.requires_grad_(bias)


class LongShortTerm(Recurrent):
    """The last hidden state of an LSTM (Kiros et al. 2014, eq. 1 to 5). With `peepholes` its gates see the cell, by
    W_ci, W_cf and W_co, transposed, in `p` (3 K, K)."""

    def __init__(self, words: Tensor, dimensions: int, dropout: float, peepholes: bool = False) -> None:
        super().__init__("lstm", words, dimensions, dropout)
        self.p = initial(3 * dimensions, dimensions) if peepholes else None

    def states(self, packed: Packed) -> Tensor:
        if self.p is None:
            return super().states(packed)
        words = dropout(functional.embedding(packed.ids, self.words), self.dropout, self.training)
        parts = (words, self.w, self.u, self.p, self.bias + self.hidden_bias)
        return PeepholeRecurrence.apply(packed.sizes, *(part.to(self.precision) for part in parts))

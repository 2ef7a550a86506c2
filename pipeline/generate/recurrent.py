"""The network of `mrnn`: a recurrent language model with the image as a bias at the first step."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.generate.beam import State
from pipeline.generate.framing import Framed
from pipeline.models.neural.recurrence import Recurrence
from pipeline.models.neural.sentences import INITIAL, Recurrent


class DescribingNetwork(Recurrent):
    """Karpathy and Fei-Fei 2015, equations 13 to 15:

        b_v = W_hi I;  h_t = f(W_hx x_t + W_hh h_{t-1} + b_h + 1(t = 1) b_v);  y_t = softmax(W_oh h_t + b_o)

    Paper to code: W_hi `image_map`, W_hx `w`, W_hh `u`, b_h `bias` + `hidden_bias`, x_t rows of `words`, W_oh `output`,
    b_o `output_bias`. The cell `rnn` is the equation with f = tanh; `lstm` and `gru` add b_v to all their gates.
    Classes are the vocabulary's V words, the unknown word V, and the boundary V + 1: START as input, END as output.
    The image I is the stacked features, centred and divided by their root mean square over the training images.
    """

    def __init__(
        self,
        cell: str,
        word_dim: int,
        dimensions: int,
        mean: Tensor,
        scale: Tensor,
        frequencies: Tensor,
        dropout: float,
    ) -> None:
        """`frequencies` (V + 2,): log shares of the classes, the initial b_o (supplement 6.5)."""
        super().__init__(cell, torch.empty(len(frequencies), word_dim).uniform_(-INITIAL, INITIAL), dimensions, dropout)
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.image_map = nn.Parameter(torch.empty(len(self.w), len(mean)).uniform_(-1, 1) / len(mean) ** 0.5)
        self.output = nn.Parameter(torch.empty(len(frequencies), dimensions).uniform_(-INITIAL, INITIAL))
        self.output_bias = nn.Parameter(frequencies)

    def image_bias(self, x: Tensor) -> Tensor:
        """b_v (n, gates H) of stacked features (n, D)."""
        x = functional.dropout((x - self.mean) / self.scale, self.dropout, self.training)
        return functional.linear(x.to(self.precision), self.image_map.to(self.precision))

    def forward(self, x: Tensor, sentences: Framed) -> Tensor:
        """The mean -log P over all words and ENDs, a scalar; sentence i describes image i of x (n, D)."""
        packed = sentences.inputs
        first = self.image_bias(x)[packed.order]
        bias = functional.pad(first, (0, 0, 0, len(packed.ids) - len(first))) + self.bias.to(self.precision)
        words = functional.dropout(functional.embedding(packed.ids, self.words), self.dropout, self.training)
        parts = (part.to(self.precision) for part in (words, self.w, self.u, bias, self.hidden_bias))
        hidden = Recurrence.apply(self.cell, packed.sizes, *parts)
        hidden = functional.dropout(hidden, self.dropout, self.training)
        return functional.cross_entropy(self.logits(hidden), sentences.targets.ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """(k, V + 2) float32 after hidden states (k, H)."""
        parts = (part.to(self.precision) for part in (hidden, self.output, self.output_bias))
        return functional.linear(*parts).float()


class RecurrentDecoder:
    """Runs the network word by word, with its weights converted once; see pipeline.generate.beam.Decoder."""

    def __init__(self, network: DescribingNetwork, x: Tensor) -> None:
        """For the images x (n, D), stacked features."""
        self.cell, self.precision = network.cell, network.precision
        self.boundary = len(network.words) - 1
        parts = (network.u, network.hidden_bias, network.output, network.output_bias)
        self.u, self.hidden_bias, self.output, self.output_bias = (part.to(self.precision) for part in parts)
        # A word's contribution to the gates depends on nothing else.
        self.inputs = functional.linear(network.words, network.w, network.bias).to(self.precision)
        self.first = network.image_bias(x)

    def begin(self) -> tuple[Tensor, State]:
        state = (self.first.new_zeros(len(self.first), self.u.shape[1], dtype=torch.float32),) * self.cell.states
        return self._advance(self.inputs[self.boundary] + self.first, state)

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        return self._advance(self.inputs[words], state)

    def _advance(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        hidden = functional.linear(state[0].to(self.precision), self.u, self.hidden_bias)
        state, _ = self.cell.step(inputs, hidden, state)
        return functional.linear(state[0].to(self.precision), self.output, self.output_bias).float(), state

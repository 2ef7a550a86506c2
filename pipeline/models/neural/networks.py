"""What models of one torch network share, the network of the global models, and encoders from packed words to one
vector a sentence (Kiros et al. 2014, section 2.2)."""

from collections.abc import Mapping
from functools import reduce
from operator import add
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.models.joint_model import Settings
from pipeline.models.linear.device import unit_length
from pipeline.models.neural.recurrence import CELLS, Packed, PeepholeRecurrence, plain_cell, recur
from pipeline.models.neural.tree_levels import Levels

ArrangedWords = Packed | Levels
"""Sentences in the form that a sentence encoder reads: packed words, or the nodes of trees by their height."""
Network = TypeVar("Network", bound=nn.Module)
Score = Literal["cosine", "product", "distance"]
"""The comparison of an image with a sentence."""


def arrays_of(network: nn.Module) -> dict[str, np.ndarray]:
    """Return the parameters and buffers of `network` by name, from any device."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in network.state_dict().items()}


def load_arrays(network: Network, arrays: Mapping[str, np.ndarray]) -> Network:
    """Load the parameters and buffers `arrays` into `network`, and return it."""
    network.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
    return network


class NetworkModel:
    """A registered model whose `network` embeds images and sentences. The best epoch on dev has the greatest recall
    sum, or with `by_mean_rank` the least mean rank."""

    multi_vector: bool = False
    by_mean_rank: bool = False
    sentence_view: str = "tokens"
    text_encoders: tuple[str, ...] = ()
    network: Any

    def to(self, device: torch.device) -> Self:
        self.network.to(device)
        return self

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def unknown(self) -> int:
        """The id of every word outside the vocabulary."""
        return len(self.network.sentences.words) - 1

    def anchors(self) -> dict[str, Tensor]:
        """Return the values, by parameter, towards which weight decay pulls; it pulls other parameters towards zero."""
        return {}

    def settings(self) -> dict[str, Any]:
        raise NotImplementedError

    def tensors(self) -> dict[str, np.ndarray]:
        return arrays_of(self.network)

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> Self:
        raise NotImplementedError

    def reloaded(self) -> Self:
        """Return this model as it is read from its file: in float32, without dropout."""
        return type(self).from_parts(self.settings(), self.tensors())


class GlobalNetwork(nn.Module):
    """A network of one vector per image and per sentence. `score` compares them."""

    score: Score
    sentences: "SentenceEncoder"


class JointNetwork(GlobalNetwork):
    """The network of global models: s(x, v) = cos(W_I (q - mean), v) for the features q of an image and the encoded
    sentence v (Kiros et al. 2014, section 2.2).

    Paper to code: W_I `image_map` (K, D). Unlike in the paper, `mean`, the mean of the training images, is subtracted
    first, because our image view has no negative features. If `score` is not `cosine`, vectors keep their length: s is
    their `product` (Socher et al. 2014, eq. 5), or minus their squared `distance`, for the same paper's squared loss.
    `mean` is then zero, because without a bias no map of centred images reaches the mean sentence.
    """

    mean: Tensor

    def __init__(
        self, mean: Tensor, sentences: "SentenceEncoder", dimensions: int, dropout: float, score: Score = "cosine"
    ) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.image_map = nn.Parameter(torch.empty(dimensions, len(mean)).uniform_(-1, 1) / len(mean) ** 0.5)
        self.sentences, self.dropout, self.score = sentences, dropout, score

    def embed_images(self, x: Tensor) -> Tensor:
        """(n, K) from stacked features (n, D)."""
        x = functional.dropout(x - self.mean, self.dropout, self.training)
        return self._scale(x @ self.image_map.T)

    def embed_sentences(self, sentences: ArrangedWords) -> Tensor:
        """(n, K) from sentences in the form that their encoder reads."""
        return self._scale(self.sentences(sentences))

    def regulariser(self) -> Tensor:
        """|theta|^2 + |W_I|, as printed: the squared length of what the sentence encoder learns, and the Frobenius norm
        of the image map (Socher et al. 2014, section 5)."""
        theta = (p.square().sum() for p in self.sentences.parameters() if p.requires_grad)
        return reduce(add, theta, self.image_map.norm())

    def _scale(self, vectors: Tensor) -> Tensor:
        return unit_length(vectors) if self.score == "cosine" else vectors

    def forward(self, x: Tensor, sentences: ArrangedWords) -> Tensor:
        """(n, n) scores of n images by n sentences."""
        v, y = self.embed_images(x), self.embed_sentences(sentences)
        return -(v[:, None] - y).square().sum(dim=2) if self.score == "distance" else v @ y.T


INITIAL = 0.08
"""Initial weights are uniform in [-INITIAL, INITIAL] (Kiros et al. 2014, section 3.1)."""


def initial(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).uniform_(-INITIAL, INITIAL))


@torch.no_grad()
def set_gate_bias(bias: Tensor, gate: int, value: float) -> None:
    """Set the initial bias of one of four gates, whose biases `bias` (4 K,) are side by side."""
    bias.unflatten(0, (4, -1))[gate] = value


class SentenceEncoder(nn.Module):
    """A network from arranged sentences to one vector per sentence, with the word vectors `words` (V + 1, d), the
    unknown word's last. `precision` is the dtype of its heaviest products."""

    words: nn.Parameter
    precision: torch.dtype


class MeanOfWords(SentenceEncoder):
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
        return functional.dropout(mean, self.dropout, self.training)


class RecurrentWeights(SentenceEncoder):
    """Word vectors and float32 weights of a recurrent cell: W_T `words`, W_x `w`, W_h `u` in Kiros et al. 2014."""

    def __init__(self, cell: str, words: Tensor, dimensions: int, dropout: float) -> None:
        """`words` (V + 1, d): the word vectors, the unknown word's last."""
        super().__init__()
        self.cell = CELLS[cell]
        self.dropout = dropout
        self.precision = torch.float32
        rows = self.cell.gates * dimensions
        self.words = nn.Parameter(words)
        self.w = initial(rows, words.shape[1])
        self.u = initial(rows, dimensions)
        self.bias = nn.Parameter(torch.zeros(rows))
        self.hidden_bias = nn.Parameter(torch.zeros(rows))


class Recurrent(RecurrentWeights):
    """v = the hidden state (K) after the last word, of the cell `rnn`, `gru` or `lstm` (Kiros et al. 2014)."""

    def states(self, packed: Packed) -> Tensor:
        """(total, K) float32: the hidden state after every word, in packed order."""
        words = functional.dropout(functional.embedding(packed.ids, self.words), self.dropout, self.training)
        return recur(self.cell, packed.sizes, self.precision, words, self.w, self.u, self.bias, self.hidden_bias)

    def forward(self, packed: Packed) -> Tensor:
        """(n, K) float32, not of unit length."""
        return functional.dropout(self.states(packed)[packed.last], self.dropout, self.training)


class PlainRecurrent(Recurrent):
    """h_t = f(W_h h_(t-1) + W_x x_t), and v the last of these (Socher et al. 2014, section 6); with `bias` f's argument
    has one. Paper to code: W_x `w`, W_h `u`, f `activation`."""

    def __init__(self, words: Tensor, dimensions: int, dropout: float, activation: str, bias: bool) -> None:
        super().__init__("rnn", words, dimensions, dropout)
        self.cell = plain_cell(activation)
        for parameter in (self.bias, self.hidden_bias):
            parameter.requires_grad_(bias)


class LongShortTerm(Recurrent):
    """The last hidden state of an LSTM (Kiros et al. 2014, eq. 1 to 5). With `peepholes` its gates see the cell, by
    W_ci, W_cf and W_co, transposed, in `p` (3 K, K)."""

    def __init__(self, words: Tensor, dimensions: int, dropout: float, peepholes: bool = False) -> None:
        super().__init__("lstm", words, dimensions, dropout)
        self.p = initial(3 * dimensions, dimensions) if peepholes else None

    def states(self, packed: Packed) -> Tensor:
        if self.p is None:
            return super().states(packed)
        words = functional.dropout(functional.embedding(packed.ids, self.words), self.dropout, self.training)
        parts = (words, self.w, self.u, self.p, self.bias + self.hidden_bias)
        return PeepholeRecurrence.apply(packed.sizes, *(part.to(self.precision) for part in parts))

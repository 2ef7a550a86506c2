"""The base class of models with a network, the network of global models, and sentence encoders over packed words.

The sentence encoders compute one vector per sentence (Kiros et al. 2014, section 2.2).
"""

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
"""The comparison of an image with a sentence: by the cosine, the inner product, or minus the squared distance of their
vectors."""


def arrays_of(network: nn.Module) -> dict[str, np.ndarray]:
    """Return the parameters and buffers of `network` as arrays, name -> array. The arrays share their memory with a
    network that is on the CPU."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in network.state_dict().items()}


def load_arrays(network: Network, arrays: Mapping[str, np.ndarray]) -> Network:
    """Load `arrays`, the parameters and buffers by name, into `network`, and return the network. Raises RuntimeError if
    the names or shapes differ from the names or shapes of the network."""
    network.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
    return network


class NetworkModel:
    """The base class of registered models whose `network` embeds images and sentences.

    The training keeps the epoch with the greatest recall sum on dev, or with the least mean rank on dev if
    `by_mean_rank` is true.
    """

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
        """The id that represents all words outside the vocabulary. The id is the row number of the last word vector."""
        return len(self.network.sentences.words) - 1

    def anchors(self) -> dict[str, Tensor]:
        """Return the values towards which weight decay pulls parameters, name of the parameter -> value.

        Weight decay pulls all other parameters towards zero. The mapping is empty unless a subclass overrides this
        method.
        """
        return {}

    def settings(self) -> dict[str, Any]:
        raise NotImplementedError

    def tensors(self) -> dict[str, np.ndarray]:
        return arrays_of(self.network)

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> Self:
        raise NotImplementedError

    def reloaded(self) -> Self:
        """Return a copy of this model that is restored from its settings and tensors. The copy is on the CPU, computes
        in float32, and has no dropout."""
        return type(self).from_parts(self.settings(), self.tensors())


class GlobalNetwork(nn.Module):
    """The base class of networks with one vector per image and per sentence, which are compared by `score`."""

    score: Score
    sentences: "SentenceEncoder"


class JointNetwork(GlobalNetwork):
    """The network of global models: s(x, v) = cos(W_I (q - mean), v) (Kiros et al. 2014, section 2.2).

    q (D,) are the features of an image, and v (K,) is the encoded sentence. In the code, W_I is `image_map` (K, D).
    Unlike in the paper, `mean`, the mean of the training images, is subtracted first, because image features are often
    not negative. If `score` is not `cosine`, vectors keep their length: s is their inner `product` (Socher et al. 2014,
    eq. 5) or minus their squared `distance` (the squared loss of section 5). The caller then gives a `mean` of zeros,
    because a linear map of centred images without a bias could not reach the mean sentence.
    """

    mean: Tensor

    def __init__(
        self, mean: Tensor, sentences: "SentenceEncoder", dimensions: int, dropout: float, score: Score = "cosine"
    ) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.image_map = nn.Parameter(torch.empty(dimensions, len(mean)).uniform_(-1, 1) / len(mean) ** 0.5)
        self.sentences = sentences
        self.dropout = dropout
        self.score = score

    def embed_images(self, x: Tensor) -> Tensor:
        """Embed the stacked features (n, D) of n images, and return (n, K), of unit length if `score` is `cosine`."""
        x = functional.dropout(x - self.mean, self.dropout, self.training)
        return self._scale(x @ self.image_map.T)

    def embed_sentences(self, sentences: ArrangedWords) -> Tensor:
        """Embed n sentences in the form that the sentence encoder reads, and return (n, K), of unit length if `score`
        is `cosine`."""
        return self._scale(self.sentences(sentences))

    def regulariser(self) -> Tensor:
        """Compute |theta|^2 + |W_I|_F, the regulariser as published by Socher et al. 2014, section 5.

        theta are the trained parameters of the sentence encoder. The norm of the image map W_I is not squared.
        """
        theta = (p.square().sum() for p in self.sentences.parameters() if p.requires_grad)
        return reduce(add, theta, self.image_map.norm())

    def _scale(self, vectors: Tensor) -> Tensor:
        return unit_length(vectors) if self.score == "cosine" else vectors

    def forward(self, x: Tensor, sentences: ArrangedWords) -> Tensor:
        """Score the n images of a batch (rows) with its n sentences (columns) by `score`, and return (n, n), with the
        pairs on the diagonal."""
        v = self.embed_images(x)
        y = self.embed_sentences(sentences)
        return -(v[:, None] - y).square().sum(dim=2) if self.score == "distance" else v @ y.T


INITIAL_RANGE = 0.08
"""Greatest absolute value of the initial weights that `initial` draws uniformly for sentence encoders (Kiros et al.
2014, section 3.1)."""


def initial(*shape: int) -> nn.Parameter:
    """Create a parameter of this `shape`, with values drawn uniformly from [-INITIAL_RANGE, INITIAL_RANGE]."""
    return nn.Parameter(torch.empty(shape).uniform_(-INITIAL_RANGE, INITIAL_RANGE))


@torch.no_grad()
def set_gate_bias(bias: Tensor, gate: int, value: float) -> None:
    """Set the biases of the gate with the number `gate`, from 0, to `value`, in place.

    `bias` (4 K,) has the K biases of each of four gates side by side.
    """
    bias.unflatten(0, (4, -1))[gate] = value


class SentenceEncoder(nn.Module):
    """The base class of networks that map each arranged sentence to one vector.

    `words` (V + 1, d) are the word vectors, of which the last belongs to the unknown word. `precision` is the dtype of
    the most expensive matrix products.
    """

    words: nn.Parameter
    precision: torch.dtype


class MeanOfWords(SentenceEncoder):
    """The encoder that averages the word vectors of a sentence. The word vectors are vectors of the joint space
    themselves.

    The mean is always computed in float32.
    """

    def __init__(self, words: Tensor, dimensions: int | None, dropout: float) -> None:
        """Create the encoder with word vectors `words` (V + 1, K), of which the last belongs to the unknown word.

        K is the dimension of the joint space. `dimensions` is not used.
        """
        super().__init__()
        self.words = nn.Parameter(words)
        self.dropout = dropout
        self.precision = torch.float32

    def forward(self, packed: Packed) -> Tensor:
        """Encode n packed sentences as (n, K) float32, not scaled to unit length."""
        starts = packed.lengths.cumsum(0) - packed.lengths
        mean = functional.embedding_bag(packed.ids[packed.rows], self.words, starts, mode="mean")
        return functional.dropout(mean, self.dropout, self.training)


class RecurrentWeights(SentenceEncoder):
    """The base class of recurrent encoders, with word vectors and the float32 weights of a recurrent cell.

    In the symbols of Kiros et al. 2014, W_T is `words` (V + 1, d), the W_x are `w` (gates K, d), and the W_h are `u`
    (gates K, K), where gates is the number of gates of the cell.
    """

    def __init__(self, cell: str, words: Tensor, dimensions: int, dropout: float) -> None:
        """Create the encoder with word vectors `words` (V + 1, d), of which the last belongs to the unknown word.

        `cell` is a name of CELLS, and `dimensions` is K.
        """
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
    """The encoder that represents a sentence by the hidden state (K,) after its last word, for a cell of CELLS such as
    `rnn`, `gru` or `lstm` (Kiros et al. 2014, section 2.2)."""

    def states(self, packed: Packed) -> Tensor:
        """Compute the hidden state after each word, (total, K) float32, in packed order."""
        words = functional.dropout(functional.embedding(packed.ids, self.words), self.dropout, self.training)
        return recur(self.cell, packed.sizes, self.precision, words, self.w, self.u, self.bias, self.hidden_bias)

    def forward(self, packed: Packed) -> Tensor:
        """Encode n packed sentences as (n, K) float32, not scaled to unit length."""
        return functional.dropout(self.states(packed)[packed.last], self.dropout, self.training)


class PlainRecurrent(Recurrent):
    """The encoder that represents a sentence by the last of the hidden states h_t = f(W_h h_(t-1) + W_x x_t) (Socher et
    al. 2014, section 6).

    In the code, W_x is `w` and W_h is `u`. f is the function in ACTIVATIONS with the name `activation`. If `bias` is
    true, a trained bias is added to the argument of f.
    """

    def __init__(self, words: Tensor, dimensions: int, dropout: float, activation: str, bias: bool) -> None:
        super().__init__("rnn", words, dimensions, dropout)
        self.cell = plain_cell(activation)
        for parameter in (self.bias, self.hidden_bias):
            parameter.requires_grad_(bias)


class LongShortTerm(Recurrent):
    """The encoder that represents a sentence by the last hidden state of an LSTM (Kiros et al. 2014, eq. 1 to 5).

    With `peepholes`, the gates also read the memory cell through W_ci, W_cf and W_co, whose transposes are `p` (3 K,
    K). Without `peepholes`, these matrices are left out.
    """

    def __init__(self, words: Tensor, dimensions: int, dropout: float, peepholes: bool = False) -> None:
        super().__init__("lstm", words, dimensions, dropout)
        self.p = initial(3 * dimensions, dimensions) if peepholes else None

    def states(self, packed: Packed) -> Tensor:
        if self.p is None:
            return super().states(packed)
        words = functional.dropout(functional.embedding(packed.ids, self.words), self.dropout, self.training)
        tensors = (words, self.w, self.u, self.p, self.bias + self.hidden_bias)
        return PeepholeRecurrence.apply(packed.sizes, *(tensor.to(self.precision) for tensor in tensors))

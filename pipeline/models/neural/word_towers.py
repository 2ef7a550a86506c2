"""The registered model `ncca-recurrent`: a map of images and a recurrent network over words, which start as a fitted
`ncca`."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.config.models import RecurrentTrainSettings
from pipeline.models.joint_model import Settings, read_setting
from pipeline.models.linear.device import unit_length
from pipeline.models.linear.projection import WordStart
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.networks import GlobalNetwork, initial, load_arrays
from pipeline.models.neural.recurrence import CELLS, Packed, recur
from pipeline.models.neural.refinement import SENTENCE_LENGTH
from pipeline.models.neural.task import TrainingTask
from pipeline.models.neural.training import seeded
from pipeline.models.neural.word_models import GlobalModel

SCALE_SAMPLE = 4096
"""Number of images, and of sentences, that suffices to measure the lengths of the initial projections. At least this
number and less than twice this number are used, or all if there are fewer."""


class InitialTowers(NamedTuple):
    """The initial parameters of Towers.

    `whole` (D, c) maps images minus `mean` (D,). `words` (V + 1, c) are word vectors, of which the last belongs to the
    unknown word. `bias` (c,) is the mean over sentences of the sum of their word vectors.
    """

    whole: Tensor
    mean: Tensor
    words: Tensor
    bias: Tensor


def initial_towers(task: TrainingTask) -> InitialTowers:
    """Compute the initial parameters from `task.start`, a WordStart with the fitted `ncca`.

    The map of images and the word vectors are each multiplied by a number, so that projected images have the root mean
    square length 1, and sentences the length SENTENCE_LENGTH, as in `ncca-refined`.
    """
    assert isinstance(task.start, WordStart)
    start = task.start.model
    train = task.train
    power = start.directions.values**start.eigenvalue_power
    w = start.directions.w * power
    u: np.ndarray = task.start.terms @ (start.directions.u * power)
    images = np.arange(train.n_images)[:: max(1, train.n_images // SCALE_SAMPLE)]
    x = (task.view.stack(train.images(images)) - start.mean_x) @ w
    sentences = train.sentences.take(np.arange(len(train.sentences))[:: max(1, len(train.owners) // SCALE_SAMPLE)])
    sums = np.zeros((len(sentences), u.shape[1]), np.float32)
    np.add.at(sums, sentences.owners, u[sentences.ids])
    bias = sums.mean(axis=0)
    shrink = SENTENCE_LENGTH / _rms(sums - bias)
    arrays = (w / _rms(x), start.mean_x, u * shrink, bias * shrink)
    return InitialTowers(*(torch.from_numpy(np.ascontiguousarray(array, np.float32)) for array in arrays))


def _rms(x: np.ndarray) -> float:
    """Compute the root mean square length of the rows of x (n, c). The result is never 0, so that it can be a
    divisor."""
    return float(np.sqrt(max(np.square(x, dtype=np.float64).sum(axis=1).mean(), np.finfo(np.float32).tiny)))


class BiGRU(nn.Module):
    """A bidirectional network of gated recurrent units. The hidden states of both directions are put side by side.

    The vector of a word has `inputs` values, and the state of each direction has `hidden` values.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        for end in ("first", "last"):
            self.register_parameter(f"w_{end}", initial(3 * hidden, inputs))
            self.register_parameter(f"u_{end}", initial(3 * hidden, hidden))
            for name in ("bias", "hidden_bias"):
                self.register_parameter(f"{name}_{end}", nn.Parameter(torch.zeros(3 * hidden)))
        self.precision = torch.float32

    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        """Compute the states (total, 2 hidden) float32 of packed words from their vectors x (total, inputs)."""
        back = packed.mirrored
        first = self._run(x, packed, "first")
        last = self._run(x[back], packed, "last")
        return torch.cat([first, last[back]], dim=1)

    def _run(self, x: Tensor, packed: Packed, end: str) -> Tensor:
        if not packed.sizes:
            return x.new_zeros(0, getattr(self, f"u_{end}").shape[1])
        weights = (getattr(self, f"{name}_{end}") for name in ("w", "u", "bias", "hidden_bias"))
        return recur(CELLS["gru"], packed.sizes, self.precision, x, *weights)


class Reading(NamedTuple):
    """The results of reading n packed sentences.

    `words` (total, c) are the vectors of the words, `states` (total, 2 hidden) the states of the BiGRU, and `whole` (n,
    c) the vectors of the sentences, of unit length.
    """

    words: Tensor
    states: Tensor
    whole: Tensor


class Towers(nn.Module):
    """The network that maps images x to g(x) = unit((x - mean) W_g) and sentences y to g(y) = unit(sum_t e_t - b + P
    mean_t h_t).

    unit scales a vector to unit length. e_t are the vectors of the sentence's words, and h_t the states of a BiGRU that
    reads them. The BiGRU reads e_t times `scale`, which makes the root mean square of the entries of the initial word
    vectors 1. P is initially zero, the BiGRU is initially random, and the other parameters begin as `towers`. The
    recurrence thus learns the effects of word order and context. In the code, W_g is `whole` (D, c), the e_t are rows
    of `words` (V + 1, c), b is `bias` (c,), and P is `to_whole` (2 hidden, c).
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, towers: InitialTowers, hidden: int, dropout: float) -> None:
        super().__init__()
        self.whole = nn.Parameter(towers.whole)
        self.words = nn.Parameter(towers.words)
        self.bias = nn.Parameter(towers.bias)
        self.register_buffer("mean", towers.mean)
        self.register_buffer("scale", 1 / towers.words.square().mean().sqrt().clamp(min=1e-6))
        dimensions = towers.words.shape[1]
        self.states = BiGRU(dimensions, hidden)
        self.to_whole = nn.Parameter(torch.zeros(2 * hidden, dimensions))
        self.dropout = dropout
        self.precision = torch.float32

    def set_precision(self, precision: torch.dtype) -> None:
        """Set the dtype of the most expensive matrix products, which are in the map of images and in the BiGRU."""
        self.precision = self.states.precision = precision

    def project_images(self, x: Tensor) -> Tensor:
        """Map n images with the stacked features x (n, D) to vectors g(x) of unit length. Return (n, c)."""
        return self.project(x - self.mean, self.whole)

    def project(self, x: Tensor, w: Tensor) -> Tensor:
        """Multiply x (n, D), with dropout during training, by w (D, c), and scale the rows of the product to unit
        length. Return (n, c)."""
        x = self.drop(x).to(self.precision)
        return unit_length((x @ w.to(self.precision)).float())

    def drop(self, x: Tensor) -> Tensor:
        """Apply dropout to x during training."""
        return functional.dropout(x, self.dropout, self.training)

    def read(self, packed: Packed) -> Reading:
        """Read n packed sentences. During training, dropout removes whole words, and values of the states."""
        e = functional.embedding(packed.ids, self.words)
        e = e * self.drop(e.new_ones(len(e), 1))
        h = self.drop(self.states(e * self.scale, packed))
        owners = packed.owners
        n = len(packed.lengths)
        sums = e.new_zeros(n, e.shape[1]).index_add(0, owners, e)
        means = h.new_zeros(n, h.shape[1]).index_add(0, owners, h) / packed.lengths[:, None]
        return Reading(e, h, functional.normalize(sums - self.bias + means @ self.to_whole, dim=1))


class RecurrentTowers(Towers, GlobalNetwork):
    """The network with the score s(x, y) = g(x) . g(y), where g is as in Towers."""

    score = "cosine"

    def embed_images(self, x: Tensor) -> Tensor:
        """Embed n images with the stacked features x (n, D) as (n, c) of unit length."""
        return self.project_images(x)

    def embed_sentences(self, packed: Packed) -> Tensor:
        """Embed n packed sentences as (n, c) of unit length."""
        return self.read(packed).whole

    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        """Score the n images of a batch (rows) with its n sentences (columns), and return (n, n), with the pairs on the
        diagonal."""
        return self.embed_images(x) @ self.embed_sentences(packed).T


class RecurrentCCA(GlobalModel):
    """The model `ncca-recurrent` of this project, with the network RecurrentTowers.

    It starts as a fitted `ncca`, and weight decay pulls its image map, word vectors and bias towards this start, and
    its other parameters towards zero.
    """

    def __init__(self, view: ImageView, network: RecurrentTowers) -> None:
        super().__init__(view, network, {})

    @classmethod
    def untrained(cls, task: TrainingTask) -> Self:
        """Create the model that starts as `task.start`, a WordStart. The recurrent network is drawn at random with the
        seed of `task`."""
        towers = initial_towers(task)
        with seeded(task.seed):
            hidden = task.own_settings(RecurrentTrainSettings).hidden
            network = RecurrentTowers(towers, hidden, task.settings.dropout)
        network.set_precision(task.precision)
        return cls(task.view, network)

    @property
    def dim(self) -> int:
        return self.network.words.shape[1]

    @property
    def unknown(self) -> int:
        return len(self.network.words) - 1

    def anchors(self) -> dict[str, Tensor]:
        return {name: getattr(self.network, name).detach().clone() for name in ("whole", "words", "bias")}

    def settings(self) -> dict[str, Any]:
        return {**vars(self.view), "hidden": self.network.states.u_first.shape[1]}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> Self:
        towers = InitialTowers(*(torch.tensor(tensors[name]) for name in InitialTowers._fields))
        network = RecurrentTowers(towers, read_setting(settings, "hidden", int), dropout=0)
        return cls(ImageView.from_dict(settings), load_arrays(network, tensors))

"""The registered model `ncca-recurrent`: towers of whole images and of words in order that start as a fitted ncca."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.models.linear.device import unit_length
from pipeline.models.linear.views import ImageView, Rows, side_by_side
from pipeline.models.neural.networks import initial, load_arrays
from pipeline.models.neural.recurrence import CELLS, Packed, recur
from pipeline.models.neural.refinement import SENTENCE_LENGTH
from pipeline.models.neural.task import TrainingTask
from pipeline.models.neural.training import seeded
from pipeline.models.neural.word_models import GlobalModel

SAMPLE = 4096
"""Images, or sentences, on which lengths are measured."""


@dataclass(frozen=True)
class WordStart:
    """A fitted ncca, and every word in its text view: `terms` (V + 1, d) has what each word of the token vocabulary
    alone adds to the vector of a sentence, before any normalising; the last, zeros, is the unknown word."""

    model: Any
    terms: Rows

    @classmethod
    def of(cls, model: Any, encoders: Mapping[str, Any], words: Sequence[str], texts: Sequence[str]) -> "WordStart":
        """The `words` by the text `encoders` of `model`. A block of the view is scaled as a whole so that sums of words
        are to sentences in length as they are in the first block, in `texts` at root mean square: a sentence has a
        factor of its own in every block, and the sum of its words has none."""
        blocks, factors = [], []
        for name in model.text.encoders:
            view, encoder = model.text.select([name]), encoders[name]
            whole, sums = view.stack({name: encoder.encode(texts)}), {name: encoder.encode_words(texts)}
            factors.append(_length(whole) / max(_length(view.unnormalised.stack(sums)), np.finfo(np.float32).tiny))
            blocks.append(view.unnormalised.stack({name: encoder.encode_words(words)}))
        scales = np.float32(factors) / np.float32(factors[0] or 1)
        return cls(model, side_by_side([block * scale for block, scale in zip(blocks, scales, strict=True)]))


class InitialTowers(NamedTuple):
    """The initial parameters: `whole` (D, c) maps images minus `mean` (D,), `words` (V + 1, c) are word vectors, the
    unknown word's last, and `bias` (c,) is the mean of their sums over sentences."""

    whole: Tensor
    mean: Tensor
    words: Tensor
    bias: Tensor


def initial_towers(task: TrainingTask) -> InitialTowers:
    """The two sides of `task.start`, a WordStart, each scaled by one number as in `ncca-refined`."""
    start, train = task.start.model, task.train
    power = start.directions.values**start.eigenvalue_power
    w, u = start.directions.w * power, task.start.terms @ (start.directions.u * power)
    images = np.arange(train.n_images)[:: max(1, train.n_images // SAMPLE)]
    x = (task.view.stack(train.images(images)) - start.mean_x) @ w
    sentences = train.sentences.take(np.arange(len(train.sentences))[:: max(1, len(train.owners) // SAMPLE)])
    sums = np.zeros((len(sentences), u.shape[1]), np.float32)
    np.add.at(sums, sentences.owners, u[sentences.ids])
    bias = sums.mean(axis=0)
    shrink = SENTENCE_LENGTH / _rms(sums - bias)
    parts = (w / _rms(x), start.mean_x, u * shrink, bias * shrink)
    return InitialTowers(*(torch.from_numpy(np.ascontiguousarray(part, np.float32)) for part in parts))


def _length(rows: Any) -> float:
    """Root mean square length of the rows, dense or sparse."""
    return float(np.sqrt((rows * rows).sum() / max(1, rows.shape[0])))


def _rms(x: np.ndarray) -> float:
    """Root mean square length of the rows."""
    return float(np.sqrt(max(np.square(x, dtype=np.float64).sum(axis=1).mean(), np.finfo(np.float32).tiny)))


class BiGRU(nn.Module):
    """The hidden states of gated recurrent units that read a sentence from both ends, side by side."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        for end in ("first", "last"):
            self.register_parameter(f"w_{end}", initial(3 * hidden, inputs))
            self.register_parameter(f"u_{end}", initial(3 * hidden, hidden))
            for name in ("bias", "hidden_bias"):
                self.register_parameter(f"{name}_{end}", nn.Parameter(torch.zeros(3 * hidden)))
        self.precision = torch.float32

    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        """(total, 2 hidden) float32 from the packed words' vectors (total, inputs)."""
        back = packed.mirrored
        first, last = self._run(x, packed, "first"), self._run(x[back], packed, "last")
        return torch.cat([first, last[back]], dim=1)

    def _run(self, x: Tensor, packed: Packed, end: str) -> Tensor:
        if not packed.sizes:
            return x.new_zeros(0, getattr(self, f"u_{end}").shape[1])
        weights = (getattr(self, f"{name}_{end}") for name in ("w", "u", "bias", "hidden_bias"))
        return recur(CELLS["gru"], packed.sizes, self.precision, x, *weights)


class Reading(NamedTuple):
    """Packed words as read: their vectors `words` (total, c), their `states` (total, 2 hidden), and the unit vector of
    each sentence, `whole` (n, c)."""

    words: Tensor
    states: Tensor
    whole: Tensor


class RecurrentTowers(nn.Module):
    """s(x, y) = g(x) . g(y) with g(x) = unit((x - mean) W_g) and g(y) = unit(sum of e_t - b + P mean of h_t): e_t the
    vectors of a sentence's words, h_t the states of a BiGRU that reads them. P is initially zero and all else as in
    `towers`, so that the recurrence adds what order and context say beyond the words.
    """

    score = "cosine"
    """As in JointNetwork: vectors are of unit length."""

    def __init__(self, towers: InitialTowers, hidden: int, dropout: float) -> None:
        super().__init__()
        self.whole, self.words = nn.Parameter(towers.whole), nn.Parameter(towers.words)
        self.bias = nn.Parameter(towers.bias)
        self.register_buffer("mean", towers.mean)
        self.register_buffer("scale", 1 / towers.words.square().mean().sqrt().clamp(min=1e-6))
        dimensions = towers.words.shape[1]
        self.states = BiGRU(dimensions, hidden)
        self.to_whole = nn.Parameter(torch.zeros(2 * hidden, dimensions))
        self.dropout, self.precision = dropout, torch.float32

    def set_precision(self, precision: torch.dtype) -> None:
        """Set the dtype of the heaviest products."""
        self.precision = self.states.precision = precision

    def embed_images(self, x: Tensor) -> Tensor:
        """(n, c) of unit length from the stacked features of whole images (n, D)."""
        return self.project(x - self.mean, self.whole)

    def project(self, x: Tensor, w: Tensor) -> Tensor:
        """unit(xW), with dropout on x."""
        x = self.drop(x).to(self.precision)
        return unit_length((x @ w.to(self.precision)).float())

    def drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)

    def read(self, packed: Packed) -> Reading:
        """In training, dropout leaves whole words out."""
        e = functional.embedding(packed.ids, self.words)
        e = e * self.drop(e.new_ones(len(e), 1))
        h = self.drop(self.states(e * self.scale, packed))
        owners, n = packed.owners, len(packed.lengths)
        sums = e.new_zeros(n, e.shape[1]).index_add(0, owners, e)
        means = h.new_zeros(n, h.shape[1]).index_add(0, owners, h) / packed.lengths[:, None]
        return Reading(e, h, functional.normalize(sums - self.bias + means @ self.to_whole, dim=1))

    def embed_sentences(self, packed: Packed) -> Tensor:
        """(n, c) of unit length."""
        return self.read(packed).whole

    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        """(n, n) scores of n images by n sentences."""
        return self.embed_images(x) @ self.embed_sentences(packed).T


class RecurrentCCA(GlobalModel):
    """Our own: see RecurrentTowers. Starts as a fitted ncca; weight decay pulls it back there."""

    def __init__(self, view: ImageView, network: RecurrentTowers) -> None:
        super().__init__(view, network, {})

    @classmethod
    def untrained(cls, task: TrainingTask) -> "RecurrentCCA":
        """The model of `task.start`, a WordStart."""
        towers = initial_towers(task)
        with seeded(task.seed):
            network = RecurrentTowers(towers, task.settings.hidden, task.settings.dropout)
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
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "RecurrentCCA":
        """The model that `settings` and `tensors` came from."""
        towers = InitialTowers(*(torch.tensor(tensors[name]) for name in InitialTowers._fields))
        network = RecurrentTowers(towers, settings["hidden"], dropout=0)
        return cls(ImageView.from_dict(settings), load_arrays(network, tensors))

"""The network of `fragments`: a global product and word-region products, all begun from one fitted ncca."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.neural.fragment_scores import FragmentSets, ScoreRule, fragment_scores
from pipeline.neural.fragments import by_sentence, mirror
from pipeline.neural.packing import Packed
from pipeline.neural.recurrence import CELLS, Recurrence
from pipeline.neural.sentences import INITIAL


class BiGRU(nn.Module):
    """The hidden states of gated recurrent units that read a sentence from both its ends, side by side."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        matrices = {"w": (3 * hidden, inputs), "u": (3 * hidden, hidden)}
        for end in ("first", "last"):
            for name, shape in matrices.items():
                start = torch.empty(shape).uniform_(-INITIAL, INITIAL)
                self.register_parameter(f"{name}_{end}", nn.Parameter(start))
            for name in ("bias", "hidden_bias"):
                self.register_parameter(f"{name}_{end}", nn.Parameter(torch.zeros(3 * hidden)))
        self.precision = torch.float32

    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        """(total, 2 hidden) float32 from the packed words' vectors (total, inputs)."""
        back = mirror(packed)
        first, last = self._run(x, packed, "first"), self._run(x[back], packed, "last")
        return torch.cat([first, last[back]], dim=1)

    def _run(self, x: Tensor, packed: Packed, end: str) -> Tensor:
        if not packed.sizes:
            return x.new_zeros(0, getattr(self, f"u_{end}").shape[1])
        parts = (x, *(getattr(self, f"{name}_{end}") for name in ("w", "u", "bias", "hidden_bias")))
        return Recurrence.apply(CELLS["gru"], packed.sizes, *(part.to(self.precision) for part in parts))


class Towers(NamedTuple):
    """Where the network begins: `whole` (D, c) and `region` (D_r, c) map images and regions less `mean` (D,) and
    `region_mean` (D_r,), `words` (V + 1, c) are word vectors, the unknown word's last, and `bias` (c,) is the mean of
    their sums over sentences."""

    whole: Tensor
    mean: Tensor
    region: Tensor
    region_mean: Tensor
    words: Tensor
    bias: Tensor


class GroundedNetwork(nn.Module):
    """S = weight * g(x) . g(y) + mean over words t of max over regions i of v_i . s_t.

    g(x) = unit((x - mean) W_g) is of the whole image, v_i = unit((x_i - mean_r) W_r) of a region. With the vectors e_t
    of a sentence's words and the states h_t of a BiGRU, which reads them, g(y) = unit(sum of e_t - b + P mean of h_t)
    and s_t = unit(e_t + Q h_t). P and Q begin at zero, all else as `Towers` says. Ours: seed 000's equation 8 has the
    whole image as one more region inside the maximum, and sums the products of vectors of any length.
    """

    def __init__(self, towers: Towers, hidden: int, dropout: float, rule: ScoreRule) -> None:
        super().__init__()
        self.whole, self.region = nn.Parameter(towers.whole), nn.Parameter(towers.region)
        self.words, self.bias = nn.Parameter(towers.words), nn.Parameter(towers.bias)
        self.register_buffer("mean", towers.mean)
        self.register_buffer("region_mean", towers.region_mean)
        self.register_buffer("scale", 1 / towers.words.square().mean().sqrt().clamp(min=1e-6))
        dimensions = towers.words.shape[1]
        self.states = BiGRU(dimensions, hidden)
        self.to_whole = nn.Parameter(torch.zeros(2 * hidden, dimensions))
        self.to_word = nn.Parameter(torch.zeros(2 * hidden, dimensions))
        self.dropout, self.rule = dropout, rule
        self.precision = torch.float32

    def embed_images(self, regions: FragmentSets, whole: Tensor) -> FragmentSets:
        """From the stacked features of regions and of whole images."""
        vectors = self._project(regions.vectors - self.region_mean, self.region)
        return FragmentSets(vectors, regions.offsets, self._project(whole - self.mean, self.whole))

    def _project(self, x: Tensor, w: Tensor) -> Tensor:
        x = self._drop(x).to(self.precision)
        return functional.normalize((x @ w.to(self.precision)).float(), dim=1)

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)

    def embed_sentences(self, packed: Packed) -> FragmentSets:
        """From packed words, any of which may be left out in training."""
        e = self.words[packed.ids]
        e = e * self._drop(e.new_ones(len(e), 1))
        h = self._drop(self.states(e * self.scale, packed))
        owners, n = packed.sentences(), len(packed.lengths)
        sums = e.new_zeros(n, e.shape[1]).index_add(0, owners, e)
        means = h.new_zeros(n, h.shape[1]).index_add(0, owners, h) / packed.lengths[:, None]
        whole = functional.normalize(sums - self.bias + means @ self.to_whole, dim=1)
        sets = by_sentence(functional.normalize(e + h @ self.to_word, dim=1), packed)
        return replace(sets, globals=whole)

    def forward(self, regions: FragmentSets, whole: Tensor, packed: Packed) -> Tensor:
        """(n, n) scores."""
        return fragment_scores(self.embed_images(regions, whole), self.embed_sentences(packed), self.rule)

"""The network of `fragments`: a global product and word-region products, both begun from one ncca-recurrent."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.metrics.multivector_scores import multivector_scores
from pipeline.models.neural.fragments import by_sentence
from pipeline.models.neural.packing import Packed
from pipeline.models.neural.word_towers import InitialTowers, RecurrentTowers
from pipeline.multivectors import MultiVectors, ScoreRule


class GroundedNetwork(RecurrentTowers):
    """S = weight * g(x) . g(y) + mean over words t of max over regions i of v_i . s_t.

    g, e_t and h_t are those of RecurrentTowers; v_i = unit((x_i - mean_r) W_r) is of a region, s_t = unit(e_t + Q h_t)
    of a word. `region` (D_r, c) and `region_mean` (D_r,) say where W_r begins and what mean_r is; Q begins at zero, all
    else in the `state` of trained RecurrentTowers. Ours: Karpathy and Fei-Fei's equation 8 has the whole image as one
    more region
    inside the maximum, and sums the products of vectors of any length.
    """

    def __init__(
        self, state: Mapping[str, Tensor], region: Tensor, region_mean: Tensor, dropout: float, rule: ScoreRule
    ) -> None:
        towers = InitialTowers(*(state[name].clone() for name in InitialTowers._fields))
        super().__init__(towers, state["states.u_first"].shape[1], dropout)
        self.load_state_dict(state)
        self.region = nn.Parameter(region)
        self.register_buffer("region_mean", region_mean)
        self.to_word = nn.Parameter(torch.zeros_like(self.to_whole))
        self.rule = rule

    def embed_images(self, regions: MultiVectors, whole: Tensor) -> MultiVectors:
        """From the stacked features of regions and of whole images."""
        vectors = self.project(regions.vectors - self.region_mean, self.region)
        return replace(regions, vectors=vectors, globals=super().embed_images(whole))

    def embed_sentences(self, packed: Packed) -> MultiVectors:
        words, states, whole = self.read(packed)
        each = by_sentence(functional.normalize(words + states @ self.to_word, dim=1), packed)
        return replace(each, globals=whole)

    def forward(self, regions: MultiVectors, whole: Tensor, packed: Packed) -> Tensor:
        """(n, n) scores."""
        return multivector_scores(self.embed_images(regions, whole), self.embed_sentences(packed), self.rule)

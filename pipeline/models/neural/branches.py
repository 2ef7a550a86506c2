"""The two-branch network of hmlstm, and its loss on sentences and noun phrases (Niu et al. 2017, section 3.2.2)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.models.neural.dropout import dropout
from pipeline.models.neural.hlstm import HierarchicalLSTM
from pipeline.models.neural.losses import Objective
from pipeline.models.neural.region_views import WHOLE
from pipeline.models.neural.tree_levels import Levels


class PhrasePairs(NamedTuple):
    """Noun phrases of a batch with their regions: `rows` (p,) of the phrases in Levels, `regions` (p, D) features,
    `weights` (p,) w_{d,k} of eq. 10, `owners` (p,) their images, `chosen` (p,) the number of the region in the batch,
    equal for phrases of one region."""

    rows: Tensor
    regions: Tensor
    weights: Tensor
    owners: Tensor
    chosen: Tensor


class Scores(NamedTuple):
    """`sentences` (n, n) of images by sentences; `phrases` (p, p) of regions by noun phrases, with their pairs."""

    sentences: Tensor
    phrases: Tensor
    pairs: PhrasePairs


@dataclass(frozen=True)
class DenseObjective:
    """Eq. 10: `objective` of the sentences plus `share` times the weighted one of the noun phrases, both divided by the
    number of sentences where its reduction is the mean.

    `contrasts` are the phrases h_{d,l} and regions v_{d,l} of eq. 9: those of the batch's `other-images`; all of the
    `batch`; or those of its `own-image` d alone, as the index says. Phrases of one region never contrast.
    """

    objective: Objective
    share: float
    contrasts: str
    drawn = 0

    def __call__(self, scores: Scores, owners: Tensor) -> Tensor:
        loss, pairs = self.objective(scores.sentences, owners), scores.pairs
        if not len(pairs.rows) or not pairs.weights.any():
            return loss
        phrases = self.objective(scores.phrases, pairs.chosen, pairs.weights, self.legal(pairs))
        if self.objective.reduction == "mean":
            phrases = phrases * len(pairs.rows) / len(owners)
        return loss + self.share * phrases

    def legal(self, pairs: PhrasePairs) -> Tensor:
        """(p, p) bool: which phrases and regions contrast."""
        same, others = (one[:, None] == one for one in (pairs.owners, pairs.chosen))
        return {"other-images": ~same, "batch": ~others, "own-image": same & ~others}[self.contrasts]


class Normalisation(nn.Module):
    """Batch normalisation with separate statistics for wholes (images, sentences) and parts (regions, phrases), because
    features of crops and of whole images have different means, but one gain and shift."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(dimensions)), nn.Parameter(torch.zeros(dimensions))
        self.wholes, self.parts = (nn.BatchNorm1d(dimensions, affine=False) for _ in range(2))

    def forward(self, x: Tensor, wholes: int) -> Tensor:
        """x (n, K), of which the first `wholes` are whole."""
        sides = ((self.wholes, x[:wholes]), (self.parts, x[wholes:]))
        normalised = [norm(part) for norm, part in sides if len(part)]
        return torch.cat(normalised) * self.gain + self.shift if normalised else x


class TwoBranches(nn.Module):
    """Each branch is a linear map, batch normalisation and unit length (Niu et al. 2017, section 3.2.2); s = v . h.

    Paper to code: W_m `image_map` (K, D), for both images and regions; W_t `text_map` (K, K), for the states of roots
    and noun phrases. The biases are those of the normalisation. Our addition: with `geometry`, W_m is (K, D + 7) and
    also maps a region's geometry minus that of the whole image.
    """

    score = "cosine"

    def __init__(
        self, mean: Tensor, sentences: HierarchicalLSTM, dimensions: int, dropout: float, geometry: bool
    ) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.sentences, self.dropout = sentences, dropout
        whole = torch.from_numpy(WHOLE) if geometry else mean.new_zeros(0)
        self.register_buffer("whole", whole, persistent=False)
        inputs = len(mean) + len(self.whole)
        self.image_map = nn.Parameter(torch.empty(dimensions, inputs).uniform_(-1, 1) / inputs**0.5)
        self.text_map = nn.Parameter(torch.eye(dimensions))
        self.image_norm, self.text_norm = Normalisation(dimensions), Normalisation(dimensions)

    def embed_images(self, x: Tensor) -> Tensor:
        """(n, K) of unit length from stacked features (n, D)."""
        return self._embed_views(self._centre_images(x), len(x))

    def embed_regions(self, x: Tensor) -> Tensor:
        """(r, K) of unit length from the region view (r, D), or (r, D + 7) with `geometry`."""
        return self._embed_views(self._centre_regions(x), 0)

    def _centre_images(self, x: Tensor) -> Tensor:
        return functional.pad(x - self.mean, (0, len(self.whole)))

    def _centre_regions(self, x: Tensor) -> Tensor:
        return x - torch.cat([self.mean, self.whole])

    def _embed_views(self, x: Tensor, images: int) -> Tensor:
        """(n, K) of unit length from centred features, of `images` images and then of regions."""
        x = dropout(x, self.dropout, self.training)
        return functional.normalize(self.image_norm(x @ self.image_map.T, images), dim=1)

    def embed_nodes(self, levels: Levels, rows: Tensor, roots: int) -> Tensor:
        """(p, K) of unit length: the nodes in `rows` (p,) of `levels`, of which the first `roots` are roots."""
        states = dropout(self.sentences(levels)[rows], self.dropout, self.training)
        return functional.normalize(self.text_norm(states @ self.text_map.T, roots), dim=1)

    def embed_sentences(self, levels: Levels) -> Tensor:
        """(n, K) of unit length: the roots."""
        return self.embed_nodes(levels, levels.roots, len(levels.roots))

    def forward(self, x: Tensor, levels: Levels, pairs: PhrasePairs) -> Scores:
        """The scores of n images and sentences, and of the noun phrases' pairs."""
        n = len(x)
        h = self.embed_nodes(levels, torch.cat([levels.roots, pairs.rows]), n)
        v = self._embed_views(torch.cat([self._centre_images(x), self._centre_regions(pairs.regions)]), n)
        return Scores(v[:n] @ h[:n].T, v[n:] @ h[n:].T, pairs)

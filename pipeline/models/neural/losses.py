"""Training objectives: functions of the scores between the images and the sentences of a batch."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.compute.device import upload


@dataclass(frozen=True)
class Objective:
    """The pairwise ranking loss (Kiros et al. 2014, eq. 6), InfoNCE, or the squared distance.

    `ranking`: for each image x with its sentence v, the sum over contrastive sentences v_k of
    max(0, alpha - s(x, v) + s(x, v_k)), and the same with images and sentences exchanged; alpha is `margin`.
    `info-nce`: -log of exp(s(x, v) / t) over the sum of itself and all exp(s(x, v_k) / t), in both directions; t is
    `temperature`.
    `negatives` says which pairs contrast: `all` others of the batch; `distinct`, the same with each image once, however
    many of its pairs are in the batch (Socher et al. 2014, eq. 5, where the batch is the training set); `hardest`, the
    one with the best score; `sampled`, `contrastive` pairs drawn from the whole training set for each batch, which
    stand at its end, so that every epoch gives a pair others (Kiros et al. 2014, section 2.2). A pair of the same image
    never contrasts.
    `squared`: |v - y|^2 of the pairs, without contrasts (Socher et al. 2014, section 5); scores are -|v - y|^2.
    `reduction` is `sum`, as the papers print it, or `mean`, which divides by the number of pairs, so that the learning
    rate does not depend on the batch size.
    """

    loss: str
    negatives: str
    contrastive: int
    margin: float
    temperature: float
    reduction: str

    @property
    def drawn(self) -> int:
        """The number of contrastive pairs at the end of a batch."""
        return self.contrastive if self.negatives == "sampled" else 0

    def __call__(
        self, scores: Tensor, owners: Tensor, weights: Tensor | float = 1.0, legal: Tensor | None = None
    ) -> Tensor:
        """The loss, a scalar: scores (n, n) of images by sentences, pairs on the diagonal; owners (n,) their images.

        `weights` (n,) multiply the terms of each pair (Niu et al. 2017, eq. 10). `legal` (n, n) bool says which pairs
        contrast, in place of those of different images.
        """
        anchors = len(scores) - self.drawn
        legal = owners[:, None] != owners if legal is None else legal
        if self.drawn:
            legal = legal & (torch.arange(len(scores), device=scores.device) >= anchors)
        positive, divisor = scores.diagonal()[:anchors], anchors if self.reduction == "mean" else 1
        if self.loss == "squared":
            return -(weights * positive).sum() / divisor
        once = first_of(owners) if self.negatives == "distinct" else True
        directions = ((scores, legal), (scores.T, legal & once))
        losses = [
            (weights * self._direction(positive, against[:anchors], contrasts[:anchors])).sum()
            for against, contrasts in directions
        ]
        return (losses[0] + losses[1]) / divisor

    def _direction(self, positive: Tensor, against: Tensor, legal: Tensor) -> Tensor:
        """(a,) of positive (a,) against (a, n) where legal (a, n)."""
        if self.loss == "info-nce":
            logits = against.masked_fill(~legal, -torch.inf)
            logits = torch.cat([positive[:, None], logits], dim=1) / self.temperature
            return logits.logsumexp(dim=1) - logits[:, 0]
        cost = (self.margin - positive[:, None] + against).clamp(min=0) * legal
        return cost.amax(dim=1) if self.negatives == "hardest" else cost.sum(dim=1)


def first_of(owners: Tensor) -> Tensor:
    """(n,) bool: whether each of `owners` (n,) is the first that is equal to it."""
    equal = (owners[:, None] == owners).int()
    return equal.argmax(dim=1) == torch.arange(len(owners), device=owners.device)


class ScoredFragments(NamedTuple):
    """The scores (n, n) of a batch, the products (regions, words) behind them, and the pair of each region and word."""

    scores: Tensor
    products: Tensor
    regions: np.ndarray
    words: np.ndarray


@dataclass(frozen=True)
class MultipleInstance:
    """`ranking` of the scores plus `weight` times the fragment alignment objective of DeFrag, which Karpathy and
    Fei-Fei 2015 cites for eq. 7: the sum over regions i and words t of k_it max(0, 1 - y_it v_i . s_t).

    y_it is -1 where region and word are of different images. Elsewhere y_it is the sign of v_i . s_t, but always 1 for
    the word's best region: at least one region of its image is positive. k_it divides by the number of positive
    products or by that of negative ones, which are hundreds of times as many.
    """

    ranking: Objective
    weight: float

    @property
    def drawn(self) -> int:
        return self.ranking.drawn

    def __call__(self, batch: ScoredFragments, owners: Tensor) -> Tensor:
        """A scalar; `owners` (n,) are the images of the batch's pairs."""
        loss = self.ranking(batch.scores, owners)
        return loss + self.weight * self.align(batch, owners) if self.weight else loss

    def align(self, batch: ScoredFragments, owners: Tensor) -> Tensor:
        """The fragment alignment objective, a scalar."""
        regions, words = (owners[upload(pairs, owners.device)] for pairs in (batch.regions, batch.words))
        products = batch.products.float()
        with torch.no_grad():
            bag = regions[:, None] == words
            best = products.masked_fill(~bag, -torch.inf).amax(dim=0)
            positive = bag & ((products > 0) | (products == best))
            weights = torch.where(positive, 1 / positive.sum(), 1 / (~positive).sum().clamp(min=1))
        return (weights * (1 - torch.where(positive, products, -products)).clamp(min=0)).sum()


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
        same, others = (column[:, None] == column for column in (pairs.owners, pairs.chosen))
        return {"other-images": ~same, "batch": ~others, "own-image": same & ~others}[self.contrasts]

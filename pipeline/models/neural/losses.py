"""Training losses, which are functions of the scores between the images and the sentences of a batch. Some also depend
on the products of regions with words, or on the scores of regions with noun phrases."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.compute.device import upload


@dataclass(frozen=True)
class Objective:
    """A loss of the scores s(x, v) between the images x and the sentences v of a batch.

    `loss` is one of:

    - `ranking` (Kiros et al. 2014, eq. 6): for each pair, the sum over contrastive sentences v_k of
      max(0, alpha - s(x, v) + s(x, v_k)), plus the same sum over contrastive images. alpha is `margin`.
    - `info-nce`: for each pair, -log of the quotient of exp(s(x, v) / t) and the sum of exp(s(x, v') / t) over v itself
      and the contrastive sentences, plus the same with contrastive images. t is `temperature`.
    - `squared` (Socher et al. 2014, section 5): for each pair, the squared distance of the image's vector and the
      sentence's vector, which is -s(x, v), without contrasts.

    `negatives` selects the contrastive pairs, which never belong to the same image as the pair itself:

    - `all`: all other pairs of the batch.
    - `distinct`: all other pairs of the batch, but each image counts only once as a contrastive image, even if the
      batch has several of its sentences (Socher et al. 2014, eq. 5, in which the batch is the whole training set). All
      sentences count as contrastive sentences.
    - `hardest`: the pair of the batch with the greatest score.
    - `sampled`: `contrastive` pairs that are drawn from the whole training set for each batch, and stand at the end of
      the batch (Kiros et al. 2014, section 2.2).

    `reduction` is `sum`, as in the papers, or `mean`, which divides by the number of pairs, so that the learning rate
    does not depend on the batch size.
    """

    loss: str
    negatives: str
    contrastive: int
    margin: float
    temperature: float
    reduction: str

    @property
    def drawn(self) -> int:
        """The number of contrastive pairs that are drawn for each batch and stand at its end, which is 0 unless
        `negatives` is `sampled`."""
        return self.contrastive if self.negatives == "sampled" else 0

    def __call__(
        self, scores: Tensor, owners: Tensor, weights: Tensor | float = 1.0, legal: Tensor | None = None
    ) -> Tensor:
        """Compute the loss, a scalar, of the `scores` (n, n) of images by sentences, with the pairs on the diagonal.

        `owners` (n,) are the images of the pairs. `weights` (n,) are factors of the terms of each pair (Niu et al.
        2017, eq. 10). Row i of `legal` (n, n) bool says which pairs may be contrastive pairs of pair i. By default
        these are the pairs of other images. The last `drawn` pairs are only contrastive pairs, and have no terms of
        their own.
        """
        anchors = len(scores) - self.drawn
        legal = owners[:, None] != owners if legal is None else legal
        if self.drawn:
            legal = legal & (torch.arange(len(scores), device=scores.device) >= anchors)
        positive = scores.diagonal()[:anchors]
        divisor = anchors if self.reduction == "mean" else 1
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
        """Compute the losses (k,) of k pairs in one direction.

        `positive` (k,) are the scores of the pairs. `against` (k, n) are the scores of the image of each pair with n
        sentences, or of the sentence of each pair with n images. `legal` (k, n) says which of these scores count as
        contrasts.
        """
        if self.loss == "info-nce":
            logits = against.masked_fill(~legal, -torch.inf)
            logits = torch.cat([positive[:, None], logits], dim=1) / self.temperature
            return logits.logsumexp(dim=1) - logits[:, 0]
        cost = (self.margin - positive[:, None] + against).clamp(min=0) * legal
        return cost.amax(dim=1) if self.negatives == "hardest" else cost.sum(dim=1)


def first_of(owners: Tensor) -> Tensor:
    """Return whether each of `owners` (n,) is the first occurrence of its value, (n,) bool."""
    equal = (owners[:, None] == owners).int()
    return equal.argmax(dim=1) == torch.arange(len(owners), device=owners.device)


class ScoredFragments(NamedTuple):
    """The `scores` (n, n) of the n images (rows) and n sentences (columns) of a batch, and the `products` (r, w) of all
    regions with all words, from which the scores were computed.

    `regions` (r,) and `words` (w,) are the numbers of the pairs in the batch to which each region and each word
    belongs.
    """

    scores: Tensor
    products: Tensor
    regions: np.ndarray
    words: np.ndarray


@dataclass(frozen=True)
class MultipleInstance:
    """The loss of DeFrag (Karpathy et al. 2014): the `ranking` loss plus `weight` times the fragment alignment
    objective.

    The fragment alignment objective is the sum over regions i and words t of k_it max(0, 1 - y_it v_i . s_t). Karpathy
    and Fei-Fei 2015 mention it with eq. 7. If the region and the word belong to different images, y_it is -1. Otherwise
    y_it is 1 if i is the word's best region in its image, and else the sign of v_i . s_t. k_it is 1 divided by the
    number of products with the same y_it, because negative products are hundreds of times as many as positive products.
    """

    ranking: Objective
    weight: float

    @property
    def drawn(self) -> int:
        return self.ranking.drawn

    def __call__(self, batch: ScoredFragments, owners: Tensor) -> Tensor:
        """Compute the loss, a scalar, from the scores and products of a `batch`. `owners` (n,) are the images of the
        batch's pairs."""
        loss = self.ranking(batch.scores, owners)
        return loss + self.weight * self.align(batch, owners) if self.weight else loss

    def align(self, batch: ScoredFragments, owners: Tensor) -> Tensor:
        """Compute only the fragment alignment objective, a scalar, from the products of a `batch`. `owners` (n,) are
        the images of the batch's pairs."""
        regions, words = (owners[upload(pairs, owners.device)] for pairs in (batch.regions, batch.words))
        products = batch.products.float()
        with torch.no_grad():
            bag = regions[:, None] == words
            best = products.masked_fill(~bag, -torch.inf).amax(dim=0)
            positive = bag & ((products > 0) | (products == best))
            weights = torch.where(positive, 1 / positive.sum(), 1 / (~positive).sum().clamp(min=1))
        return (weights * (1 - torch.where(positive, products, -products)).clamp(min=0)).sum()


class PhrasePairs(NamedTuple):
    """The p noun phrases of a batch, each with its region (Niu et al. 2017).

    `rows` (p,) are the rows of the phrases in Levels, and `regions` (p, D) are the features of the regions. `weights`
    (p,) are the confidences w_{d,k} of eq. 10, and `owners` (p,) are the images of the phrases. `chosen` (p,) are the
    numbers of the regions in the batch. Two phrases have the same number if they have the same region.
    """

    rows: Tensor
    regions: Tensor
    weights: Tensor
    owners: Tensor
    chosen: Tensor


class Scores(NamedTuple):
    """The scores of a batch: `sentences` (n, n) of n images (rows) with n sentences (columns), and `phrases` (p, p) of
    p regions (rows) with p noun phrases (columns). The right pairs are on the diagonals.

    `pairs` describes the noun phrases.
    """

    sentences: Tensor
    phrases: Tensor
    pairs: PhrasePairs


@dataclass(frozen=True)
class DenseObjective:
    """The loss of Niu et al. 2017, eq. 10: `objective` of the sentences, plus `share` times `objective` of the noun
    phrases.

    The terms of noun phrases are weighted by their confidence. If the reduction is `mean`, both parts are divided by
    the number of sentences. `contrasts` selects the contrastive phrases h_{d,l} and regions v_{d,l} of eq. 9: the
    phrases of `other-images` of the batch, all phrases of the `batch`, or only the phrases of the `own-image`, as the
    index d in eq. 9 says. Phrases of the same region never contrast. If no phrase of the batch has a positive
    confidence, the loss is the loss of the sentences alone.
    """

    objective: Objective
    share: float
    contrasts: str
    drawn = 0

    def __call__(self, scores: Scores, owners: Tensor) -> Tensor:
        """Compute the loss, a scalar, from the `scores` of a batch. `owners` (n,) are the images of the batch's
        pairs."""
        loss = self.objective(scores.sentences, owners)
        pairs = scores.pairs
        if not len(pairs.rows) or not pairs.weights.any():
            return loss
        phrases = self.objective(scores.phrases, pairs.chosen, pairs.weights, self.legal(pairs))
        if self.objective.reduction == "mean":
            phrases = phrases * len(pairs.rows) / len(owners)
        return loss + self.share * phrases

    def legal(self, pairs: PhrasePairs) -> Tensor:
        """Return a matrix (p, p) bool for p `pairs` of a phrase and its region. Entry (i, j) says whether pair j is a
        contrastive pair of pair i."""
        same, others = (column[:, None] == column for column in (pairs.owners, pairs.chosen))
        return {"other-images": ~same, "batch": ~others, "own-image": same & ~others}[self.contrasts]

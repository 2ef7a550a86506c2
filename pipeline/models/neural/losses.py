"""What training minimises: functions of the scores between the images and the sentences of one batch."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Objective:
    """The pairwise ranking loss (Kiros et al. 2014, equation 6) or InfoNCE, in both directions, over chosen negatives.

    `ranking`: for each image x with its sentence v, the sum over contrastive sentences v_k of
    max(0, alpha - s(x, v) + s(x, v_k)), and the same with the parts exchanged; alpha is `margin`.
    `info-nce`: -log of the share that exp(s(x, v) / t) has in the sum of itself and the exp(s(x, v_k) / t); t is
    `temperature`.
    Contrastive are, with `negatives` `all`: the others of the batch; `hardest`: only the best scored of these;
    `sampled`, as in the paper: `contrastive` pairs drawn from the whole training set for this batch, the last ones
    in it. Never one that shares the image. Equation 5 of Socher et al. 2014 is `ranking` with `all`.
    `squared`: |v - y|^2 of the pairs, without contrasts (Socher et al. 2014, section 5), of scores -|v - y|^2.
    The sum is divided by the number of pairs, so that the learning rate means
    the same for every batch size.
    """

    loss: str
    negatives: str
    contrastive: int
    margin: float
    temperature: float

    @property
    def drawn(self) -> int:
        """How many contrastive pairs stand at the end of a batch."""
        return self.contrastive if self.negatives == "sampled" else 0

    def __call__(self, scores: Tensor, owners: Tensor, weights: Tensor | float = 1.0) -> Tensor:
        """The loss, a scalar: scores (n, n) of images by sentences, pairs on the diagonal; owners (n,) their images.

        `weights` (n,) multiply the anchors' terms (Niu et al. 2017, equation 10).
        """
        anchors = len(scores) - self.drawn
        legal = owners[:, None] != owners
        if self.drawn:
            legal[:, :anchors] = False
        positive = scores.diagonal()[:anchors]
        if self.loss == "squared":
            return -(weights * positive).sum() / anchors
        directions = (scores[:anchors], scores.T[:anchors])
        terms = (weights * self._direction(positive, against, legal[:anchors]) for against in directions)
        return sum(term.sum() for term in terms) / anchors

    def _direction(self, positive: Tensor, against: Tensor, legal: Tensor) -> Tensor:
        """(a,) of positive (a,) against (a, n) where legal (a, n)."""
        if self.loss == "info-nce":
            logits = against.masked_fill(~legal, -torch.inf)
            logits = torch.cat([positive[:, None], logits], dim=1) / self.temperature
            return logits.logsumexp(dim=1) - logits[:, 0]
        cost = (self.margin - positive[:, None] + against).clamp(min=0) * legal
        return cost.amax(dim=1) if self.negatives == "hardest" else cost.sum(dim=1)

"""What fragment models minimise beyond the losses of whole scores: the multiple-instance objective of `defrag`."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.device import upload
from pipeline.models.neural.losses import Objective
from pipeline.multivectors import MultiVectors


class ScoredFragments(NamedTuple):
    """The scores (n, n) of a batch and the fragments that they are made of."""

    scores: Tensor
    images: MultiVectors
    sentences: MultiVectors


@dataclass(frozen=True)
class MultipleInstance:
    """`ranking` of the scores plus `weight` times the fragment alignment objective of DeFrag, which Karpathy and
    Fei-Fei 2015 cites for
    equation 7: the sum over regions i and words t of k_it max(0, 1 - y_it v_i . s_t).

    y_it is -1 where the region's image is not the word's. Where it is, the bag of a word's regions holds at least one
    positive: y_it is the sign of v_i . s_t, but 1 for the word's best region. k_it divides by the number of the
    positive or of the negative products, whichever it belongs to, since these are hundreds of times as many.
    """

    ranking: Objective
    weight: float

    @property
    def drawn(self) -> int:
        return self.ranking.drawn

    def __call__(self, made: ScoredFragments, owners: Tensor) -> Tensor:
        """A scalar; `owners` (n,) are the images of the batch's pairs."""
        loss = self.ranking(made.scores, owners)
        return loss + self.weight * self.align(made.images, made.sentences, owners) if self.weight else loss

    def align(self, images: MultiVectors, sentences: MultiVectors, owners: Tensor) -> Tensor:
        """The fragment alignment objective, a scalar."""
        regions, words = (owners[upload(each.owners, owners.device)] for each in (images, sentences))
        products = images.vectors @ sentences.vectors.T
        with torch.no_grad():
            bag = regions[:, None] == words
            best = products.masked_fill(~bag, -torch.inf).amax(dim=0)
            positive = bag & ((products > 0) | (products == best))
            counts = positive.sum(), (~positive).sum().clamp(min=1)
            weights = torch.where(positive, 1 / counts[0], 1 / counts[1])
        return (weights * (1 - torch.where(positive, products, -products)).clamp(min=0)).sum()

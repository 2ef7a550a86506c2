"""The network of a global model: an image map and a sentence encoder into one space of unit vectors."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.neural.packing import Packed


class JointNetwork(nn.Module):
    """s(x, v) = cos(W_I (q - mean), v) for the features q of an image and the encoded sentence v (seed 001, 2.2).

    Paper to code: W_I `image_map` (K, D). The mean of the training images is taken off first, which the paper does not
    do: the steps of our image view leave only positive features.
    """

    def __init__(self, mean: Tensor, sentences: nn.Module, dimensions: int, dropout: float) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.image_map = nn.Parameter(torch.empty(dimensions, len(mean)).uniform_(-1, 1) / len(mean) ** 0.5)
        self.sentences = sentences
        self.dropout = dropout

    def embed_images(self, x: Tensor) -> Tensor:
        """(n, K) of unit length from stacked features (n, D)."""
        x = functional.dropout(x - self.mean, self.dropout, self.training)
        return functional.normalize(x @ self.image_map.T, dim=1)

    def embed_sentences(self, packed: Packed) -> Tensor:
        """(n, K) of unit length."""
        return functional.normalize(self.sentences(packed), dim=1)

    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        """(n, n) scores of n images by n sentences."""
        return self.embed_images(x) @ self.embed_sentences(packed).T

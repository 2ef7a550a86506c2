"""The network of a global model: an image map and a sentence encoder into one space of unit vectors."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


def arrays_of(network: nn.Module) -> dict[str, np.ndarray]:
    """What `network` has learned, by name, wherever it computes."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in network.state_dict().items()}


class JointNetwork(nn.Module):
    """s(x, v) = cos(W_I (q - mean), v) for the features q of an image and the encoded sentence v (Kiros et al. 2014,
    2.2).

    Paper to code: W_I `image_map` (K, D). The mean of the training images is taken off first, which the paper does not
    do: the steps of our image view leave only positive features. Without `unit`, vectors keep their length and s is
    -|v_I - v|^2, as the squared loss of Socher et al. 2014 needs it.
    """

    def __init__(self, mean: Tensor, sentences: nn.Module, dimensions: int, dropout: float, unit: bool = True) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.image_map = nn.Parameter(torch.empty(dimensions, len(mean)).uniform_(-1, 1) / len(mean) ** 0.5)
        self.sentences = sentences
        self.dropout = dropout
        self.unit = unit

    def embed_images(self, x: Tensor) -> Tensor:
        """(n, K) from stacked features (n, D)."""
        x = functional.dropout(x - self.mean, self.dropout, self.training)
        return self._scale(x @ self.image_map.T)

    def embed_sentences(self, sentences: Any) -> Tensor:
        """(n, K) from sentences in the form that their encoder takes."""
        return self._scale(self.sentences(sentences))

    def _scale(self, vectors: Tensor) -> Tensor:
        return functional.normalize(vectors, dim=1) if self.unit else vectors

    def forward(self, x: Tensor, sentences: Any) -> Tensor:
        """(n, n) scores of n images by n sentences."""
        v, y = self.embed_images(x), self.embed_sentences(sentences)
        return v @ y.T if self.unit else -(v[:, None] - y).square().sum(dim=2)

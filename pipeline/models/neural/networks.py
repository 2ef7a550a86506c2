"""What models of one torch network share, and the network of the global models."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.models.neural.dropout import dropout

Network = TypeVar("Network", bound=nn.Module)
Score = Literal["cosine", "product", "distance"]
"""What compares an image with a sentence."""


def arrays_of(network: nn.Module) -> dict[str, np.ndarray]:
    """The parameters and buffers of `network` by name, from whatever device."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in network.state_dict().items()}


def load_arrays(network: Network, arrays: Mapping[str, np.ndarray]) -> Network:
    """`network` with the parameters and buffers `arrays`."""
    network.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
    return network


class NetworkModel:
    """A registered model whose `network` embeds images and sentences."""

    multi_vector: ClassVar[bool] = False
    sentence_view: ClassVar[str] = "tokens"
    network: Any

    def to(self, device: torch.device) -> Self:
        """This model, whose network computes on `device` from now on."""
        self.network.to(device)
        return self

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def unknown(self) -> int:
        """The id of every word outside the vocabulary."""
        return len(self.network.sentences.words) - 1

    def anchors(self) -> dict[str, Tensor]:
        """The values, by parameter, towards which weight decay pulls; the other parameters are pulled towards zero."""
        return {}

    def tensors(self) -> dict[str, np.ndarray]:
        return arrays_of(self.network)

    def reloaded(self) -> Self:
        """This model as it is read from its file: in float32, without dropout."""
        return type(self).from_parts(self.settings(), self.tensors())


class JointNetwork(nn.Module):
    """s(x, v) = cos(W_I (q - mean), v) for the features q of an image and the encoded sentence v (Kiros et al. 2014,
    section 2.2).

    Paper to code: W_I `image_map` (K, D). Unlike the paper, the mean of the training images is subtracted first,
    because our image view has no negative features. Where `score` is not `cosine`, vectors keep their length: s is
    their `product` (Socher et al. 2014, eq. 5), or minus their squared `distance`, for the same paper's squared loss.
    """

    def __init__(
        self, mean: Tensor, sentences: nn.Module, dimensions: int, dropout: float, score: Score = "cosine"
    ) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.image_map = nn.Parameter(torch.empty(dimensions, len(mean)).uniform_(-1, 1) / len(mean) ** 0.5)
        self.sentences, self.dropout, self.score = sentences, dropout, score

    def embed_images(self, x: Tensor) -> Tensor:
        """(n, K) from stacked features (n, D)."""
        x = dropout(x - self.mean, self.dropout, self.training)
        return self._scale(x @ self.image_map.T)

    def embed_sentences(self, sentences: Any) -> Tensor:
        """(n, K) from sentences in the form that their encoder takes."""
        return self._scale(self.sentences(sentences))

    def regulariser(self) -> Tensor:
        """|theta|^2 + |W_I|, as printed: the squared length of what the sentence encoder learns, and the Frobenius norm
        of the image map (Socher et al. 2014, section 5)."""
        theta = (p.square().sum() for p in self.sentences.parameters() if p.requires_grad)
        return sum(theta, self.image_map.norm())

    def _scale(self, vectors: Tensor) -> Tensor:
        return functional.normalize(vectors, dim=1) if self.score == "cosine" else vectors

    def forward(self, x: Tensor, sentences: Any) -> Tensor:
        """(n, n) scores of n images by n sentences."""
        v, y = self.embed_images(x), self.embed_sentences(sentences)
        return -(v[:, None] - y).square().sum(dim=2) if self.score == "distance" else v @ y.T

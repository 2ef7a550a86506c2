"""Cross-domain similarity local scaling (CSLS) of any model of unit vectors: scores without the advantage of hubs.

Conneau et al., Word translation without parallel data (2018), section 2.3:

    CSLS(x, y) = 2 x'y - r(x) - r(y)

where r(x) is the mean product of the image x with its k nearest sentences, and r(y) of the sentence y with its k
nearest images. A hub, near to everything, is found by fewer queries that do not mean it. Neighbours are looked for in a
*bank* of training pairs (querybank normalisation, Bogolin et al. 2022), so that a score depends on its pair alone.

Here s(x, y) = (x'y - w r(x) - w r(y)) / (2 + w^2): w = 1/2 is CSLS, and no factor changes a rank. The score is again a
product of unit vectors, which an index takes like any others.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.metrics.scored import recall_sum_of_scores
from pipeline.models.linear.projection import unit_rows

BLOCK_ROWS = 4096
"""Rows that are compared with a bank at once."""


@dataclass(frozen=True)
class VectorBank:
    """Unit vectors of training: `images` (a, c) and `sentences` (b, c)."""

    images: np.ndarray
    sentences: np.ndarray

    def near_images(self, x: np.ndarray, neighbours: Sequence[int]) -> np.ndarray:
        """(n, len(neighbours)) r of the images x (n, c), for each k in `neighbours`."""
        return _near(x, self.sentences, neighbours)

    def near_sentences(self, y: np.ndarray, neighbours: Sequence[int]) -> np.ndarray:
        """(m, len(neighbours)) r of the sentences y (m, c), likewise."""
        return _near(y, self.images, neighbours)

    def tensors(self) -> dict[str, np.ndarray]:
        return vars(self)


class Scaled:
    """A registered model whose scores are scaled by `weight` and `neighbours`: all of `model`, with longer vectors."""

    def __init__(self, model: Any, weight: float, neighbours: int, bank: Any) -> None:
        self.model, self.weight, self.neighbours, self.bank = model, weight, neighbours, bank

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not yet there while it is copied
            raise AttributeError(name)
        return getattr(self.model, name)

    def to(self, device: Any) -> "Scaled":
        """This model, which from now on embeds on `device`; the bank stays with the processor."""
        self.model.to(device)
        return self

    def embed_images(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, c + 4) float32 from `features`, encoder -> (n, its dim)."""
        x = self.model.embed_images(features)
        return extend(x, self.bank.near_images(x, [self.neighbours])[:, 0], self.weight, own=0)

    def embed_sentences(self, sentences: Any) -> np.ndarray:
        """(m, c + 4) float32 from what the model takes."""
        y = self.model.embed_sentences(sentences)
        return extend(y, self.bank.near_sentences(y, [self.neighbours])[:, 0], self.weight, own=1)

    def settings(self) -> dict[str, Any]:
        return {**self.model.settings(), "csls": {"weight": self.weight, "neighbours": self.neighbours}}

    def tensors(self) -> dict[str, np.ndarray]:
        """The model's, and those of the bank under the names `csls/...`."""
        return {**self.model.tensors(), **{f"csls/{name}": tensor for name, tensor in self.bank.tensors().items()}}

    @classmethod
    def from_parts(cls, registered: Any, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "Scaled":
        """The model of the class `registered`, scaled, that `settings` and `tensors` came from."""
        bank = {name.removeprefix("csls/"): tensor for name, tensor in tensors.items() if name.startswith("csls/")}
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith("csls/")}
        model = registered.from_parts({name: value for name, value in settings.items() if name != "csls"}, own)
        return cls(model, **settings["csls"], bank=cls.read_bank(bank, model))

    @staticmethod
    def read_bank(tensors: Mapping[str, np.ndarray], model: Any) -> VectorBank:
        """The bank that `tensors` came from."""
        return VectorBank(**tensors)


def extend(vectors: np.ndarray, near: np.ndarray, weight: float, own: int) -> np.ndarray:
    """[x, -w r, 1, w sqrt(1 - r^2), 0] of images (`own` 0) or [y, 1, -w r, 0, w sqrt(1 - r^2)] of sentences (1), r
    being `near` (n,), to unit length, for which all need the same factor.

    Of two images the new columns multiply to 1 + w^2 (r r' + sqrt(1 - r^2) sqrt(1 - r'^2)), nearly a constant: how
    images compare with images is left as it was.
    """
    more = np.zeros((len(vectors), 4), np.float32)
    more[:, own], more[:, 1 - own] = -weight * near, 1
    more[:, 2 + own] = weight * np.sqrt(np.maximum(1 - near**2, 0))
    return unit_rows(np.hstack([vectors, more]))


def choose_scaling(
    scores: np.ndarray,
    near_images: np.ndarray,
    near_sentences: np.ndarray,
    owners: np.ndarray,
    neighbours: Sequence[int],
    weights: Sequence[float],
) -> list[dict[str, float]]:
    """A trial for each weight and k, the best first, with its recall sum (600 at best) of n images by m sentences,
    sentence j being of image `owners[j]`.

    `scores` (n, m) are not yet scaled, `near_images` and `near_sentences` have a column for each of `neighbours`. Of
    equally good trials the first in the grid.
    """
    trials = []
    for weight, (column, k) in itertools.product(weights, enumerate(neighbours)):
        scaled = scores - np.float32(weight) * (near_images[:, column, None] + near_sentences[:, column])
        trials.append({"weight": weight, "neighbours": k, "recall_sum": recall_sum_of_scores(scaled, owners)})
    return sorted(trials, key=lambda trial: -trial["recall_sum"])


def means_of_greatest(products: np.ndarray, neighbours: Sequence[int]) -> np.ndarray:
    """(n, len(neighbours)) float32: of each row of `products` (n, b) the means of its k greatest, or of all where there
    are fewer."""
    most = min(max(neighbours), products.shape[1])
    greatest = np.partition(products, products.shape[1] - most, axis=1)[:, products.shape[1] - most :]
    greatest = np.sort(greatest, axis=1)[:, ::-1]
    return np.stack([greatest[:, : min(k, most)].mean(axis=1, dtype=np.float32) for k in neighbours], axis=1)


def _near(vectors: np.ndarray, bank: np.ndarray, neighbours: Sequence[int]) -> np.ndarray:
    starts = range(0, max(1, len(vectors)), BLOCK_ROWS)
    return np.concatenate([means_of_greatest(vectors[at : at + BLOCK_ROWS] @ bank.T, neighbours) for at in starts])

"""Cross-domain similarity local scaling (CSLS) of any model of inner products: scores without the advantage of hubs.

Conneau et al., Word translation without parallel data (2018), section 2.3:

    CSLS(x, y) = 2 x'y - r(x) - r(y)

where r(x) is the mean product of the image x with its k nearest sentences, and r(y) of the sentence y with its k
nearest images. A hub, near to everything, is found by fewer queries that do not mean it. Neighbours are looked for in a
*bank* of training pairs (querybank normalisation, Bogolin et al. 2022), so that a score depends on its pair alone.

Here s(x, y) = (x'y - w r(x) - w r(y)) / (2 + w^2): w = 1/2 is CSLS, and no factor changes a rank. The score is again a
product of unit vectors, which an index takes like any others. Of a multi-vector model, s(x, y) = S(x, y) - w r(x) -
w r(y), S being its own score; what is taken off stands in two more columns of the globals.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.metrics.ranks import rank_scores
from pipeline.metrics.retrieval import recall_sum
from pipeline.metrics.scores import score
from pipeline.models.linear.projection import unit_rows
from pipeline.multivectors import Comparison, Items, MultiVectors, ScoreRule

BLOCK_ROWS, BLOCK_ITEMS = 4096, 256
"""Items, and items of several vectors, that are compared with a bank at once."""
PARTS = ("vectors", "offsets", "globals")


@dataclass(frozen=True)
class Bank:
    """What training has of `images` and `sentences`, and how these compare: unit vectors, (a, c) and (b, c), or several
    an item."""

    images: Items
    sentences: Items
    comparison: Comparison = "inner_product"

    def near_images(self, x: Items, neighbours: Sequence[int]) -> np.ndarray:
        """(n, len(neighbours)) r of the n images x, for each k in `neighbours`."""
        scores = (score(block, self.sentences, self.comparison) for block in self._blocks(x))
        return np.concatenate([means_of_greatest(one, neighbours) for one in scores])

    def near_sentences(self, y: Items, neighbours: Sequence[int]) -> np.ndarray:
        """(m, len(neighbours)) r of the m sentences y, likewise."""
        scores = (score(self.images, block, self.comparison).T for block in self._blocks(y))
        return np.concatenate([means_of_greatest(one, neighbours) for one in scores])

    def tensors(self) -> dict[str, np.ndarray]:
        sides = {"images": self.images, "sentences": self.sentences}
        if isinstance(self.comparison, str):
            return sides
        named = {f"{side}/{name}": getattr(own, name) for side, own in sides.items() for name in PARTS}
        return {name: array for name, array in named.items() if array is not None}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], model: Any) -> "Bank":
        """The bank that `tensors` came from, which scores as `model` does."""
        if not model.multi_vector:
            return cls(**tensors)
        sides = (MultiVectors(*(tensors.get(f"{side}/{name}") for name in PARTS)) for side in ("images", "sentences"))
        return cls(*sides, model.rule)

    def _blocks(self, own: Items) -> Iterator[Items]:
        size = BLOCK_ROWS if isinstance(self.comparison, str) else BLOCK_ITEMS
        return (own[start : start + size] for start in range(0, max(1, len(own)), size))


class Scaled:
    """A registered model whose scores are scaled by `weight` and `neighbours`: all of `model`, with longer vectors or
    globals."""

    def __init__(self, model: Any, weight: float, neighbours: int, bank: Bank) -> None:
        self.model, self.weight, self.neighbours, self.bank = model, weight, neighbours, bank

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not yet there while it is copied
            raise AttributeError(name)
        return getattr(self.model, name)

    def to(self, device: Any) -> "Scaled":
        """This model, which from now on embeds on `device`; the bank stays with the processor."""
        self.model.to(device)
        return self

    @property
    def rule(self) -> ScoreRule:
        """How it scores, where it is multi-vector."""
        own = self.model.rule
        return own._replace(global_weight=own.global_weight or 1.0)

    def embed_images(self, features: Mapping[str, np.ndarray], *regions: Any) -> Items:
        """As of the model: (n, c + 4) float32, or globals of two more columns."""
        x = self.model.embed_images(features, *regions)
        return self._extend(x, self.bank.near_images(x, [self.neighbours])[:, 0], own=0)

    def embed_sentences(self, sentences: Any) -> Items:
        """The same of sentences, in the form that the model takes."""
        y = self.model.embed_sentences(sentences)
        return self._extend(y, self.bank.near_sentences(y, [self.neighbours])[:, 0], own=1)

    def _extend(self, vectors: Items, near: np.ndarray, own: int) -> Items:
        if not self.model.multi_vector:
            return extend(vectors, near, self.weight, own)
        return extend_globals(vectors, near, self.weight / self.rule.global_weight, own)

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
        return cls(model, **settings["csls"], bank=Bank.from_tensors(bank, model))


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


def extend_globals(items: MultiVectors, near: np.ndarray, weight: float, own: int) -> MultiVectors:
    """Globals [g, -w r, 1] of images (`own` 0) or [g, 1, -w r] of sentences (1)."""
    more = np.ones((len(items), 2), np.float32)
    more[:, own] = -weight * near
    return replace(items, globals=more if items.globals is None else np.hstack([items.globals, more]))


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
        trials.append({"weight": weight, "neighbours": k, "recall_sum": recall_sum(rank_scores(scaled, owners))})
    return sorted(trials, key=lambda trial: -trial["recall_sum"])


def means_of_greatest(products: np.ndarray, neighbours: Sequence[int]) -> np.ndarray:
    """(n, len(neighbours)) float32: of each row of `products` (n, b) the means of its k greatest, or of all where there
    are fewer."""
    most = min(max(neighbours), products.shape[1])
    greatest = np.partition(products, products.shape[1] - most, axis=1)[:, products.shape[1] - most :]
    greatest = np.sort(greatest, axis=1)[:, ::-1]
    return np.stack([greatest[:, : min(k, most)].mean(axis=1, dtype=np.float32) for k in neighbours], axis=1)

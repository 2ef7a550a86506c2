"""Cross-domain similarity local scaling (CSLS): hubness correction for any model of inner products.

Conneau et al., Word translation without parallel data (2018), section 2.3:

    CSLS(x, y) = 2 x'y - r(x) - r(y)

where r(x) is the mean product of the image x with its k nearest sentences, and r(y) that of the sentence y with its k
nearest images. A hub, which is near everything, then ranks lower for queries that do not mean it. Neighbours come from
a *bank* of training pairs (querybank normalisation, Bogolin et al. 2022), so that a score depends on its pair alone.

Here s(x, y) = (x'y - w r(x) - w r(y)) / (2 + w^2): w = 1/2 is CSLS up to a factor, which changes no rank. The score is
again a product of unit vectors, for which any index works. For a multi-vector model with the score S, s(x, y) = S(x, y)
- w r(x) - w r(y); two more columns of the globals hold the subtracted terms.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.metrics.ranks import rank_scores, score
from pipeline.metrics.retrieval import recall_sum
from pipeline.models.linear.projection import unit_rows
from pipeline.multivectors import Comparison, Items, MultiVectors, ScoreRule

BLOCK_ROWS, BLOCK_ITEMS = 4096, 256
"""Items of one vector, and of several, compared with a bank at once."""
PARTS = ("vectors", "offsets", "globals")


@dataclass(frozen=True)
class Bank:
    """Embedded training `images` and `sentences` and their comparison: unit vectors, (a, c) and (b, c), or several an
    item."""

    images: Items
    sentences: Items
    comparison: Comparison = "inner_product"

    def near_images(self, x: Items, neighbours: Sequence[int]) -> np.ndarray:
        """(n, len(neighbours)) r of the n images x, for each k in `neighbours`."""
        scores = (score(block, self.sentences, self.comparison) for block in self._blocks(x))
        return np.concatenate([means_of_greatest(products, neighbours) for products in scores])

    def near_sentences(self, y: Items, neighbours: Sequence[int]) -> np.ndarray:
        """(m, len(neighbours)) r of the m sentences y, likewise."""
        scores = (score(self.images, block, self.comparison).T for block in self._blocks(y))
        return np.concatenate([means_of_greatest(products, neighbours) for products in scores])

    def tensors(self) -> dict[str, np.ndarray]:
        sides = {"images": self.images, "sentences": self.sentences}
        if isinstance(self.comparison, str):
            return sides
        named = {f"{side}/{name}": getattr(items, name) for side, items in sides.items() for name in PARTS}
        return {name: array for name, array in named.items() if array is not None}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], model: Any) -> "Bank":
        """The bank that `tensors` came from, with the scores of `model`."""
        if not model.multi_vector:
            return cls(**tensors)
        sides = (MultiVectors(*(tensors.get(f"{side}/{name}") for name in PARTS)) for side in ("images", "sentences"))
        return cls(*sides, model.rule)

    def _blocks(self, items: Items) -> Iterator[Items]:
        size = BLOCK_ROWS if isinstance(self.comparison, str) else BLOCK_ITEMS
        return (items[start : start + size] for start in range(0, max(1, len(items)), size))


class HubCorrected:
    """A registered `model` with hubness correction by `weight` and `neighbours`: the same but for longer vectors or
    globals."""

    def __init__(self, model: Any, weight: float, neighbours: int, bank: Bank) -> None:
        self.model, self.weight, self.neighbours, self.bank = model, weight, neighbours, bank

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not yet set while the object is copied
            raise AttributeError(name)
        return getattr(self.model, name)

    def to(self, device: Any) -> "HubCorrected":
        """This model, which embeds on `device` from now on; the bank stays on the processor."""
        self.model.to(device)
        return self

    @property
    def rule(self) -> ScoreRule:
        """Of a multi-vector model."""
        rule = self.model.rule
        return rule._replace(global_weight=rule.global_weight or 1.0)

    def embed_images(self, features: Mapping[str, np.ndarray], *regions: Any) -> Items:
        """The model's, with four more columns, or two more columns of the globals."""
        x = self.model.embed_images(features, *regions)
        return self._extend(x, self.bank.near_images(x, [self.neighbours])[:, 0], own=0)

    def embed_sentences(self, sentences: Any) -> Items:
        """The same for sentences, in the form that the model takes."""
        y = self.model.embed_sentences(sentences)
        return self._extend(y, self.bank.near_sentences(y, [self.neighbours])[:, 0], own=1)

    def _extend(self, vectors: Items, near: np.ndarray, own: int) -> Items:
        if not self.model.multi_vector:
            return extend(vectors, near, self.weight, own)
        return extend_globals(vectors, near, self.weight / self.rule.global_weight, own)

    def settings(self) -> dict[str, Any]:
        return {**self.model.settings(), "csls": {"weight": self.weight, "neighbours": self.neighbours}}

    def tensors(self) -> dict[str, np.ndarray]:
        """The model's, and those of the bank as `csls/...`."""
        return {**self.model.tensors(), **{f"csls/{name}": tensor for name, tensor in self.bank.tensors().items()}}

    @classmethod
    def from_parts(
        cls, registered: Any, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
    ) -> "HubCorrected":
        """The corrected model of the class `registered` that `settings` and `tensors` came from."""
        bank = {name.removeprefix("csls/"): tensor for name, tensor in tensors.items() if name.startswith("csls/")}
        of_model = {name: tensor for name, tensor in tensors.items() if not name.startswith("csls/")}
        model = registered.from_parts({name: value for name, value in settings.items() if name != "csls"}, of_model)
        return cls(model, **settings["csls"], bank=Bank.from_tensors(bank, model))


def extend(vectors: np.ndarray, near: np.ndarray, weight: float, own: int) -> np.ndarray:
    """[x, -w r, 1, w sqrt(1 - r^2), 0] of images (`own` 0) or [y, 1, -w r, 0, w sqrt(1 - r^2)] of sentences (1), r
    being `near` (n,), scaled to unit length, which takes the same factor for all.

    The new columns of two images have the product 1 + w^2 (r r' + sqrt(1 - r^2) sqrt(1 - r'^2)), nearly a constant: the
    order of images by similarity to an image hardly changes.
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


def choose_correction(
    scores: np.ndarray, near_images: np.ndarray, near_sentences: np.ndarray, owners: np.ndarray,
    neighbours: Sequence[int], weights: Sequence[float],
) -> list[dict[str, float]]:  # fmt: skip
    """A trial for each weight and k, with its recall sum (at most 600), the best first; equal ones in the grid's order.

    `scores` (n, m) are the uncorrected ones of n images by m sentences, sentence j being of image `owners[j]`;
    `near_images` and `near_sentences` have a column for each of `neighbours`.
    """
    trials = []
    for weight, (column, k) in itertools.product(weights, enumerate(neighbours)):
        corrected = scores - np.float32(weight) * (near_images[:, column, None] + near_sentences[:, column])
        trials.append({"weight": weight, "neighbours": k, "recall_sum": recall_sum(rank_scores(corrected, owners))})
    return sorted(trials, key=lambda trial: -trial["recall_sum"])


def means_of_greatest(products: np.ndarray, neighbours: Sequence[int]) -> np.ndarray:
    """(n, len(neighbours)) float32: for each row of `products` (n, b) the means of its k greatest, or of all if there
    are fewer."""
    most = min(max(neighbours), products.shape[1])
    greatest = np.sort(np.partition(products, -most, axis=1)[:, -most:], axis=1)[:, ::-1]
    return np.stack([greatest[:, : min(k, most)].mean(axis=1, dtype=np.float32) for k in neighbours], axis=1)

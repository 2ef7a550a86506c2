"""Local scaling of models whose images and sentences are sets of fragments; see pipeline.models.linear.csls.

    s(x, y) = S(x, y) - w r(x) - w r(y)

S being the model's own score. What is taken off stands in two more columns of the globals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.metrics.fragment_scores import FragmentSets, ScoreRule, fragment_scores
from pipeline.models.linear.csls import Scaled, means_of_greatest

BLOCK = 256
"""Sets that are compared with a bank at once."""
PARTS = ("vectors", "offsets", "globals")


@dataclass(frozen=True)
class SetBank:
    """`images` and `sentences` of training, and the `rule` by which they score."""

    images: FragmentSets
    sentences: FragmentSets
    rule: ScoreRule

    def near_images(self, x: FragmentSets, neighbours: Sequence[int]) -> np.ndarray:
        """(n, len(neighbours)) r of the images x, for each k in `neighbours`."""
        blocks = _blocks(x)
        scores = (fragment_scores(block, self.sentences, self.rule).numpy() for block in blocks)
        return np.concatenate([means_of_greatest(one, neighbours) for one in scores])

    def near_sentences(self, y: FragmentSets, neighbours: Sequence[int]) -> np.ndarray:
        """(m, len(neighbours)) r of the sentences y, likewise."""
        scores = (fragment_scores(self.images, block, self.rule).numpy().T for block in _blocks(y))
        return np.concatenate([means_of_greatest(one, neighbours) for one in scores])

    def tensors(self) -> dict[str, np.ndarray]:
        return {
            f"{side}/{name}": np.asarray(getattr(getattr(self, side), name))
            for side in ("images", "sentences")
            for name in PARTS
            if getattr(getattr(self, side), name) is not None
        }


class ScaledSets(Scaled):
    """A registered model of sets whose scores are scaled: all of `model`, with longer globals."""

    @property
    def rule(self) -> ScoreRule:
        own = self.model.rule
        return own._replace(global_weight=own.global_weight or 1.0)

    def embed_image_sets(self, features: Mapping[str, np.ndarray], regions: Any) -> FragmentSets:
        """One set an image, as of the model."""
        x = self.model.embed_image_sets(features, regions)
        return self._extend(x, self.bank.near_images(x, [self.neighbours]), own=0)

    def embed_sentence_sets(self, sentences: Any) -> FragmentSets:
        """One set a sentence, as of the model."""
        y = self.model.embed_sentence_sets(sentences)
        return self._extend(y, self.bank.near_sentences(y, [self.neighbours]), own=1)

    @staticmethod
    def read_bank(tensors: Mapping[str, np.ndarray], model: Any) -> SetBank:
        """The bank that `tensors` came from, which scores as `model` does."""
        sides = (FragmentSets(*(tensors.get(f"{side}/{name}") for name in PARTS)) for side in ("images", "sentences"))
        return SetBank(*sides, model.rule)

    def _extend(self, sets: FragmentSets, near: np.ndarray, own: int) -> FragmentSets:
        """Globals [g, -w r / gamma, 1] of images or [g, 1, -w r / gamma] of sentences, gamma being their weight."""
        more = np.ones((len(sets), 2), np.float32)
        more[:, own] = -self.weight / self.rule.global_weight * near[:, 0]
        parts = [more] if sets.globals is None else [sets.globals, more]
        return FragmentSets(sets.vectors, sets.offsets, np.hstack(parts))


def _blocks(sets: FragmentSets) -> list[FragmentSets]:
    return [sets.between(start, min(start + BLOCK, len(sets))) for start in range(0, max(1, len(sets)), BLOCK)]

"""Training pairs from snippets of sentences and the regions aligned with them (Karpathy and Fei-Fei 2015)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.errors import InputError
from pipeline.models.neural.task import TrainingPairs
from pipeline.text.sequences import encode_tokens
from pipeline.text.vocabulary import Vocabulary

TOLERANCE = 1.0
"""Pixels by which a snippet's box may differ from its region, at each side."""


class Snippet(NamedTuple):
    """Some `words` of a sentence, and the `box` (x1, y1, x2, y2 in original pixels) that shows them."""

    sentence_id: int
    image_id: int
    words: Sequence[str]
    box: tuple[float, float, float, float]
    score: float


class SnippetRegions(NamedTuple):
    """The regions of some images: those of image i are rows offsets[i] to offsets[i + 1], the whole image first."""

    image_id: np.ndarray
    offsets: np.ndarray
    boxes: np.ndarray
    features: np.ndarray

    def take(self, rows: np.ndarray, whole: bool) -> np.ndarray:
        """(k, dim) the features of the regions `rows` (k,); with `whole` (k, 2 dim), those of their whole images beside
        them."""
        if not whole:
            return self.features[rows]
        first = self.offsets[np.searchsorted(self.offsets, rows, "right") - 1]
        return np.hstack([self.features[rows], self.features[first]])


def region_pairs(
    snippets: Sequence[Snippet],
    regions: Mapping[str, SnippetRegions],
    splits: np.ndarray,
    vocabulary: Vocabulary,
    whole: bool,
) -> dict[str, TrainingPairs]:
    """The snippets of `train` and of `dev`, each with the features of its box, from encoder -> `regions`; `whole`
    as in SnippetRegions.

    `splits` (n_images,) is every image's. Raises InputError naming, by number, a snippet without a region, and for a
    split without snippets.
    """
    tokens = encode_tokens([" ".join(snippet.words) for snippet in snippets], vocabulary)
    of = np.array([splits[snippet.image_id] for snippet in snippets])
    image_id, boxes = np.array([one.image_id for one in snippets]), np.array([one.box for one in snippets])
    chosen = {name: find_regions(own, image_id, boxes) for name, own in regions.items()}
    for found in chosen.values():
        if len(missing := np.flatnonzero(found < 0)):
            number, snippet = missing[0], snippets[missing[0]]
            raise InputError(
                f"snippet {number} (sentence {snippet.sentence_id}) has a box that is no region of image"
                f" {snippet.image_id}; align with the regions that you give"
            )
    pairs = {}
    for split in ("train", "dev"):
        rows = np.flatnonzero((of == split) & (tokens.lengths > 0))
        if not len(rows):
            raise InputError(f"no snippet is of the {split} split; align the sentences of train and dev")
        features = {name: own.take(chosen[name][rows], whole) for name, own in regions.items()}
        pairs[split] = TrainingPairs(features, tokens.take(rows), np.arange(len(rows)), rows)
    return pairs


def find_regions(regions: SnippetRegions, image_id: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(k,): the rows of the regions that match the `boxes` (k, 4) in the images `image_id` (k,), or -1."""
    places, found = np.searchsorted(regions.image_id, image_id), []
    for place, box in zip(places.tolist(), np.asarray(boxes), strict=True):
        first, last = regions.offsets[place], regions.offsets[place + 1]
        distance = np.abs(regions.boxes[first:last] - box).max(axis=1)
        found.append(first + distance.argmin() if distance.min(initial=np.inf) <= TOLERANCE else -1)
    return np.array(found, np.int64)

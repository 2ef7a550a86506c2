"""Snippets of sentences with the regions that they were aligned with, as pairs to learn from (Karpathy and Fei-Fei
2015)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.errors import InputError
from pipeline.models.neural.task import TrainingPairs
from pipeline.text.sequences import encode_tokens
from pipeline.text.vocabulary import Vocabulary

TOLERANCE = 1.0
"""Pixels by which the sides of a snippet's box may differ from those of its region."""


class Snippet(NamedTuple):
    """Some `words` of a sentence and the `box` (x1, y1, x2, y2), in original pixels, that shows them."""

    sentence_id: int
    image_id: int
    words: Sequence[str]
    box: tuple[float, float, float, float]
    score: float


class SnippetRegions(NamedTuple):
    """The regions of some images: `boxes` and `features` of image i are rows offsets[i] to offsets[i + 1]."""

    image_id: np.ndarray
    offsets: np.ndarray
    boxes: np.ndarray
    features: np.ndarray


def region_pairs(
    snippets: Sequence[Snippet], regions: Mapping[str, SnippetRegions], splits: np.ndarray, vocabulary: Vocabulary
) -> dict[str, TrainingPairs]:
    """The snippets of `train` and of `dev`, each with the features, encoder -> `regions`, of its box; `splits`
    (n_images,) is that of every image. Errors call a snippet by its number.

    Raises InputError naming a snippet without a region, and where a split has none.
    """
    tokens = encode_tokens([" ".join(snippet.words) for snippet in snippets], vocabulary)
    of = np.array([splits[snippet.image_id] for snippet in snippets])
    chosen = {name: _find(snippets, own) for name, own in regions.items()}
    pairs = {}
    for split in ("train", "dev"):
        rows = np.flatnonzero((of == split) & (tokens.lengths > 0))
        if not len(rows):
            raise InputError(f"no snippet is of the {split} split; align the sentences of train and dev")
        features = {name: own.features[chosen[name][rows]] for name, own in regions.items()}
        pairs[split] = TrainingPairs(features, tokens.take(rows), np.arange(len(rows)), rows)
    return pairs


def find_regions(regions: SnippetRegions, image_id: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(k,) the rows of the regions of the images `image_id` (k,) that are the `boxes` (k, 4); -1 where none is."""
    places, found = np.searchsorted(regions.image_id, image_id), []
    for place, box in zip(places.tolist(), np.asarray(boxes), strict=True):
        first, last = regions.offsets[place], regions.offsets[place + 1]
        distance = np.abs(regions.boxes[first:last] - box).max(axis=1)
        found.append(first + distance.argmin() if distance.min(initial=np.inf) <= TOLERANCE else -1)
    return np.array(found, np.int64)


def _find(snippets: Sequence[Snippet], regions: SnippetRegions) -> np.ndarray:
    """(k,) the rows of the regions that are the snippets' boxes."""
    rows = find_regions(regions, np.array([one.image_id for one in snippets]), np.array([one.box for one in snippets]))
    if len(missing := np.flatnonzero(rows < 0)):
        number, snippet = missing[0], snippets[missing[0]]
        raise InputError(
            f"snippet {number} (sentence {snippet.sentence_id}) has a box that is no region of image"
            f" {snippet.image_id}; align with the regions that you give"
        )
    return rows

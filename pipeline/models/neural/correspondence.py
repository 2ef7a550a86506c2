"""Which region of its image a noun phrase speaks of (Niu et al. 2017, section 3.3)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.device import upload
from pipeline.ragged import Ragged, runs
from pipeline.text.trees import Trees


@dataclass(frozen=True)
class Correspondences(Ragged):
    """For all noun phrases of m sentences, sentence after sentence: `chosen` (p,) int64, the region's number in its
    image, and `confidence` (p,) float32, their similarity. Those of sentence i are offsets[i] to offsets[i + 1]."""

    chosen: Tensor
    confidence: Tensor
    offsets: np.ndarray


def noun_phrases(trees: Trees, noun_phrase: int) -> np.ndarray:
    """The nodes of `trees` labelled `noun_phrase` that are not the whole sentence, tree after tree."""
    return np.flatnonzero((trees.labels == noun_phrase) & (trees.parents >= 0) & (trees.words < 0))


def unknown_correspondences(trees: Trees, noun_phrase: int) -> Correspondences:
    """What is known at the beginning: nothing, with no confidence."""
    offsets = np.searchsorted(noun_phrases(trees, noun_phrase), trees.offsets)
    return Correspondences(torch.zeros(offsets[-1], dtype=torch.int64), torch.zeros(offsets[-1]), offsets)


def match(phrases: Tensor, images: np.ndarray, regions: Tensor, offsets: np.ndarray) -> tuple[Tensor, Tensor]:
    """The most similar region (p,) of each phrase's image, as its number there, and the similarity (p,).

    phrases (p, K) and regions (r, K) are unit vectors, images (p,) the image of each phrase; the regions of image i are
    offsets[i] to offsets[i + 1], of which the first, the whole image, is nobody's unless it is the only one.
    """
    lengths = np.diff(offsets)
    number = runs(np.zeros(len(lengths), np.int64), lengths)
    image = np.repeat(np.arange(len(lengths)), lengths)
    legal = (number > 0) | (lengths[image] == 1)
    allowed = upload((images[:, None] == image) & legal, phrases.device)
    confidence, best = (phrases @ regions.T).masked_fill(~allowed, -torch.inf).max(dim=1)
    return upload(number, best.device)[best], confidence

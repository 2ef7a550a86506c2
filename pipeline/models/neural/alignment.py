"""Alignment of the words of a sentence to regions of its image (Karpathy and Fei-Fei 2015, section 3.1.4), and the
lengths of the vectors of words and regions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Segment:
    """A segment of a sentence: the words `first` to `last` - 1, which describe the region with the number `region` of
    the image. Words and regions are numbered from 0.

    `score` is the sum of the products of the words' vectors with the region's vector.
    """

    first: int
    last: int
    region: int
    score: float


def decode_chain(scores: np.ndarray, beta: float) -> np.ndarray:
    """Assign a region to each of n words by the Markov random field of Karpathy and Fei-Fei 2015, eq. 10 to 12.

    `scores` (n, m) are the products v_i . s_t of n words with m regions, n and m at least 1. `beta`, at least 0, is the
    affinity of neighbouring words. The regions a_j maximise sum_j scores[j, a_j] + beta sum_j 1[a_j = a_(j+1)] exactly,
    by dynamic programming. The paper speaks of an energy that is minimised, which has the opposite sign. With `beta` 0,
    each word gets its own best region. Among equal assignments, the last word gets the lowest region, and each word
    before it keeps the region of its successor if possible.

    Returns the numbers of the regions, (n,) int64.
    """
    best = scores[0].astype(np.float64)
    predecessors = []
    for row in scores[1:]:
        top = best.argmax()
        moved = best[top]
        stayed = best + beta
        predecessors.append(np.where(stayed >= moved, np.arange(len(best)), top))
        best = np.maximum(stayed, moved) + row
    regions = [best.argmax()]
    for predecessor in reversed(predecessors):
        regions.append(predecessor[regions[-1]])
    return np.array(regions[::-1])


def align(words: np.ndarray, regions: np.ndarray, beta: float) -> list[Segment]:
    """Divide a sentence into segments: runs of consecutive words to which `decode_chain` assigns the same region.

    `words` (n, c) are the vectors of the sentence's words, and `regions` (m, c) the vectors of its image's regions.
    `beta`, at least 0, is the affinity of neighbouring words. The list is empty if there are no words or no regions.
    """
    if not len(words) or not len(regions):
        return []
    scores = words @ regions.T
    chain = decode_chain(scores, beta)
    products = scores[np.arange(len(chain)), chain]
    starts = np.flatnonzero(np.diff(chain, prepend=-1))
    stops = np.append(starts[1:], len(chain))
    return [
        Segment(int(first), int(last), int(chain[first]), float(products[first:last].sum(dtype=np.float64)))
        for first, last in zip(starts, stops, strict=True)
    ]


def align_alone(words: np.ndarray, regions: np.ndarray) -> list[Segment]:
    """Return a segment for each single word, in the order of the words, with its best region (Karpathy and Fei-Fei
    2015, Figure 5).

    `words` are (n, c) and `regions` (m, c), m at least 1. Neighbouring words do not affect each other.
    """
    scores = words @ regions.T
    return [Segment(j, j + 1, int(best), float(scores[j, best])) for j, best in enumerate(scores.argmax(axis=1))]


def word_magnitudes(words: Sequence[str], lengths: np.ndarray, least_count: int) -> list[dict[str, Any]]:
    """Compute the mean length of each word's vectors over all its occurrences (Karpathy and Fei-Fei 2015, Table 4).

    `words` (total,) are the occurrences, and `lengths` (total,) the lengths of their vectors. Returns a dict for each
    word that occurs at least `least_count` times, with the `word`, the mean length of its vectors as `magnitude`, and
    the number of its occurrences as `count`. The least magnitude comes first. Words that describe nothing visible have
    short vectors.
    """
    terms, ids, counts = np.unique(words, return_inverse=True, return_counts=True)
    means = np.bincount(ids, lengths.astype(np.float64)) / counts
    return [
        {"word": str(terms[row]), "magnitude": float(means[row]), "count": int(counts[row])}
        for row in np.argsort(means, kind="stable")
        if counts[row] >= least_count
    ]


def longest_vectors(vectors: np.ndarray, owners: np.ndarray, count: int) -> np.ndarray:
    """Return the row numbers of the longest vectors of `count` different images, longest first.

    `owners` (n,) are the images to which the `vectors` (n, c) belong. Only the longest vector of each image is
    returned, so that there are fewer than `count` rows if there are fewer images.

    Regions with long vectors can have the greatest scores with a sentence (Karpathy and Fei-Fei 2015, Figure 8).
    """
    order = np.argsort(-np.linalg.norm(vectors, axis=1), kind="stable")
    first = np.sort(np.unique(owners[order], return_index=True)[1])
    return order[first[:count]]

"""Which words of a sentence describe which region of its image (Karpathy and Fei-Fei 2015, section 3.1.4), and which
words and regions matter most."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Segment:
    """The words `first` to `last` - 1 of a sentence describe `region`; `score` is the sum of their products with it."""

    first: int
    last: int
    region: int
    score: float


def decode_chain(scores: np.ndarray, beta: float) -> np.ndarray:
    """(n,) int64, the best region of each of n words.

    The regions a_j of the words j maximise sum_j scores[j, a_j] + beta sum_j 1[a_j = a_(j+1)], found exactly by dynamic
    programming (eq. 10 to 12; the paper minimises the negative, as an energy). With `beta` 0 every word takes its own
    best region. Of equal assignments, the one whose last word has the lowest region, and which from there backwards
    stays with a region longest.

    `scores` (n, m) are products v_i . s_t of words by regions, n and m at least 1; `beta` is at least 0.
    """
    best, came_from = scores[0].astype(np.float64), []
    for row in scores[1:]:
        top = best.argmax()
        moved, stayed = best[top], best + beta
        came_from.append(np.where(stayed >= moved, np.arange(len(best)), top))
        best = np.maximum(stayed, moved) + row
    regions = [best.argmax()]
    for before in reversed(came_from):
        regions.append(before[regions[-1]])
    return np.array(regions[::-1])


def align(words: np.ndarray, regions: np.ndarray, beta: float) -> list[Segment]:
    """The segments of a sentence: runs of words with the same region. The sentence has the vectors `words` (n, c), its
    image `regions` (m, c); a sentence without words, or of an image without regions, has no segment."""
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
    """Each word with its best region, as before any affinity of neighbours: words (n, c), regions (m, c), m at least 1
    (Karpathy and Fei-Fei 2015, Figure 5)."""
    scores = words @ regions.T
    return [Segment(j, j + 1, int(best), float(scores[j, best])) for j, best in enumerate(scores.argmax(axis=1))]


def word_magnitudes(words: Sequence[str], lengths: np.ndarray, least_count: int) -> list[dict[str, Any]]:
    """The mean vector length of each word over all its occurrences (Karpathy and Fei-Fei 2015, Table 4), shortest
    first, for words that occur at least `least_count` times: `word`, `magnitude` and `count`. Words for nothing visible
    are mapped near the origin.

    `lengths` (total,) are of the vectors of the `words` (total,).
    """
    terms, ids, counts = np.unique(words, return_inverse=True, return_counts=True)
    means = np.bincount(ids, lengths.astype(np.float64)) / counts
    return [
        {"word": str(terms[row]), "magnitude": float(means[row]), "count": int(counts[row])}
        for row in np.argsort(means, kind="stable")
        if counts[row] >= least_count
    ]


def longest_vectors(vectors: np.ndarray, owners: np.ndarray, count: int) -> np.ndarray:
    """The rows of the `count` longest of `vectors` (n, c), longest first, at most one for each owner (n,): the regions
    that would score highest if a sentence described them (Karpathy and Fei-Fei 2015, Figure 8)."""
    order = np.argsort(-np.linalg.norm(vectors, axis=1), kind="stable")
    first = np.sort(np.unique(owners[order], return_index=True)[1])
    return order[first[:count]]

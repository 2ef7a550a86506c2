"""Which words of a sentence describe which region of its image (Karpathy and Fei-Fei 2015, section 3.1.4), and which
words and regions matter most."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

BATCH = 256
"""Sentences decoded at once."""


@dataclass(frozen=True)
class Segment:
    """The words `first` to `last` - 1 of a sentence describe `region`; `score` is the sum of their products with it."""

    first: int
    last: int
    region: int
    score: float


def decode_chains(scores: np.ndarray, lengths: np.ndarray, beta: float) -> np.ndarray:
    """(s, n) int64, the best region of every word of s sentences; values beyond a sentence's length are meaningless.

    The regions a_j of the words j maximise sum_j scores[j, a_j] + beta sum_j 1[a_j = a_(j+1)], found exactly by dynamic
    programming (eq. 10 to 12; the paper minimises the negative, as an energy). With `beta` 0 every word takes its own
    best region. Of equal assignments, the one whose last word has the lowest region, and which from there backwards
    stays with a region longest.

    `scores` (s, n, m) are products v_i . s_t of words by regions, minus infinity where an image has fewer than m
    regions; `lengths` (s,) are from 1 to n; `beta` is at least 0.
    """
    n_sentences, n_words, n_regions = scores.shape
    each = np.arange(n_sentences)
    best = scores[:, 0].astype(np.float64)
    came_from = np.empty((n_words, n_sentences, n_regions), np.int64)
    for j in range(1, n_words):
        top = best.argmax(axis=1)
        moved, stayed = best[each, top][:, None], best + beta
        inside = (j < lengths)[:, None]
        came_from[j] = np.where((stayed >= moved) | ~inside, np.arange(n_regions), top[:, None])
        best = np.where(inside, np.maximum(stayed, moved) + scores[:, j], best)
    regions = np.empty((n_sentences, n_words), np.int64)
    regions[:, -1] = best.argmax(axis=1)
    for j in range(n_words - 1, 0, -1):
        regions[:, j - 1] = came_from[j, each, regions[:, j]]
    return regions


def align(words: Sequence[np.ndarray], regions: Sequence[np.ndarray], beta: float) -> Iterator[list[Segment]]:
    """The segments of each sentence: runs of words with the same region.

    Sentence i has the vectors `words[i]` (n_i, c), its image `regions[i]` (m_i, c). A sentence without words, or of an
    image without regions, has no segment.
    """
    for start in range(0, len(words), BATCH):
        pairs = [(w, r) for w, r in zip(words[start : start + BATCH], regions[start : start + BATCH], strict=True)]
        full = [number for number, pair in enumerate(pairs) if all(map(len, pair))]
        segments: dict[int, list[Segment]] = {}
        if full:
            scores, lengths = _products([pairs[number] for number in full])
            decoded = decode_chains(scores, lengths, beta)
            segments = {number: _runs(decoded[row, : lengths[row]], scores[row]) for row, number in enumerate(full)}
        yield from (segments.get(number, []) for number in range(len(pairs)))


def align_alone(words: np.ndarray, regions: np.ndarray) -> list[Segment]:
    """Each word with its best region, as before any affinity of neighbours: words (n, c), regions (m, c), m at least 1
    (Karpathy and Fei-Fei 2015, Figure 5)."""
    scores = words @ regions.T
    return [Segment(j, j + 1, int(best), float(scores[j, best])) for j, best in enumerate(scores.argmax(axis=1))]


def _products(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """(s, n, m) products of the words and regions of each pair, minus infinity elsewhere; (s,) the number of words."""
    lengths = np.array([len(words) for words, _ in pairs])
    scores = np.full((len(pairs), lengths.max(), max(len(regions) for _, regions in pairs)), -np.inf, np.float32)
    for row, (words, regions) in zip(scores, pairs, strict=True):
        row[: len(words), : len(regions)] = words @ regions.T
    return scores, lengths


def _runs(regions: np.ndarray, scores: np.ndarray) -> list[Segment]:
    """The segments of one sentence from the region of each word (n,) and the `scores` (at least n, m)."""
    products = scores[np.arange(len(regions)), regions]
    starts = np.flatnonzero(np.diff(regions, prepend=-1))
    stops = np.append(starts[1:], len(regions))
    return [
        Segment(int(first), int(last), int(regions[first]), float(products[first:last].sum(dtype=np.float64)))
        for first, last in zip(starts, stops, strict=True)
    ]


@dataclass(frozen=True)
class Magnitudes:
    """Words by the mean length of their vectors, shortest first: `words` (k,) ids, `lengths` (k,), `counts` (k,)."""

    words: np.ndarray
    lengths: np.ndarray
    counts: np.ndarray


def word_magnitudes(lengths: np.ndarray, ids: np.ndarray, least_count: int) -> Magnitudes:
    """Mean vector length of each word over all its occurrences (Karpathy and Fei-Fei 2015, Table 4), for words that
    occur at least `least_count` times. Words for nothing visible are mapped near the origin.

    `lengths` (total,) are of the vectors of the words `ids` (total,).
    """
    counts = np.bincount(ids)
    means = np.bincount(ids, lengths.astype(np.float64)) / np.maximum(counts, 1)
    frequent = np.flatnonzero(counts >= max(least_count, 1))
    order = frequent[np.argsort(means[frequent], kind="stable")]
    return Magnitudes(order, means[order], counts[order])


def longest_vectors(vectors: np.ndarray, owners: np.ndarray, count: int) -> np.ndarray:
    """The rows of the `count` longest of `vectors` (n, c), longest first, at most one for each owner (n,): the regions
    that would score highest if a sentence described them (Karpathy and Fei-Fei 2015, Figure 8)."""
    order = np.argsort(-np.linalg.norm(vectors, axis=1), kind="stable")
    first = np.sort(np.unique(owners[order], return_index=True)[1])
    return order[first[:count]]

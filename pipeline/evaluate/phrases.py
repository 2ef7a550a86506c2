"""Phrases and the regions that they speak of: correspondences against gold boxes, and ranking (Niu et al. 2017, Table
4)."""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.metrics.lattice import to_lattice
from pipeline.precision import require_finite
from pipeline.ragged import runs

BLOCK = 256
"""Queries whose scores with the whole gallery are made at once."""


def named_boxes(
    texts: Sequence[str],
    heads: Sequence[str],
    images: np.ndarray,
    labels: Sequence[str],
    box_images: np.ndarray,
    names: Mapping[str, frozenset[str]],
) -> np.ndarray:
    """(k, 2) pairs of a phrase and a box of its image whose label names it, ascending.

    A label names the phrases whose words (`texts`) or whose head (`heads`) are among its `names`, or, where it has
    none there, are the label itself. `images` (p,) and `box_images` (g,) say what image each is of.
    """
    by_image: dict[int, list[int]] = {}
    for box, image in enumerate(box_images.tolist()):
        by_image.setdefault(image, []).append(box)
    found = [
        (phrase, box)
        for phrase, (text, head, image) in enumerate(zip(texts, heads, images.tolist(), strict=True))
        for box in by_image.get(image, ())
        if not {text, head}.isdisjoint(names.get(labels[box], frozenset([labels[box]])))
    ]
    return np.array(found, np.int64).reshape(-1, 2)


def pairs_within(images: np.ndarray, other_images: np.ndarray) -> np.ndarray:
    """(k, 2) all pairs of two things of the same image, ascending; `other_images` (r,) ascend."""
    first = np.searchsorted(other_images, images, "left")
    counts = np.searchsorted(other_images, images, "right") - first
    return np.stack([np.repeat(np.arange(len(images)), counts), runs(first, counts)], axis=1)


def overlap(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(n,) intersection over union of boxes (n, 4) with others (n, 4), pair by pair; x1, y1, x2, y2."""
    low, high = np.maximum(boxes[:, :2], others[:, :2]), np.minimum(boxes[:, 2:], others[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    areas = (np.prod(each[:, 2:] - each[:, :2], axis=1) for each in (boxes, others))
    union = sum(areas) - shared
    return np.divide(shared, union, out=np.zeros(len(boxes)), where=union > 0)


def judge_pairs(pairs: np.ndarray, boxes: np.ndarray, named: np.ndarray, gold: np.ndarray, least: float) -> np.ndarray:
    """(k,) bool: of each of the `pairs` (k, 2) of a phrase and a region, whether the region's box overlaps one of the
    phrase's gold boxes by at least `least`.

    `pairs` ascend, and hold for every phrase all the regions that come into question. boxes (r, 4); `named` (q, 2)
    pairs of a phrase and a box of gold (g, 4).
    """
    right = np.zeros(len(pairs), bool)
    at = pairs_within(named[:, 0], pairs[:, 0])
    enough = overlap(boxes[pairs[at[:, 1], 1]], gold[named[at[:, 0], 1]]) >= least
    right[at[enough, 1]] = True
    return right


class Similarities:
    """Products of rows of two sets of vectors, a (n, c) and b (m, c), that do not depend on where the rows stand.

    Vectors are rounded to a lattice on which scores are exact. Raises IntegrityError naming a row that is not finite.
    """

    def __init__(self, a: np.ndarray, b: np.ndarray) -> None:
        require_finite("embeddings", "regions", a)
        require_finite("embeddings", "phrases", b)
        self.a, self.b = (to_lattice(x) for x in (a, b))

    def of(self, pairs: np.ndarray) -> np.ndarray:
        """(k,) for the rows `pairs` (k, 2) of a and b."""
        return np.einsum("ij,ij->i", self.a[pairs[:, 0]], self.b[pairs[:, 1]])


def rank_within(scores: np.ndarray, right: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
    """(count,) the rank, from 1, of each query's best right candidate among its wrong ones; 0 where none is right.

    A candidate is of the query `queries` (k,), has `scores` (k,), and is `right` (k,) or not. Ties count against the
    model.
    """
    best = np.full(count, -np.inf)
    np.maximum.at(best, queries[right], scores[right])
    above = ~right & (scores >= best[queries])
    ranks = 1 + np.bincount(queries[above], minlength=count)
    return np.where(np.isfinite(best), ranks, 0)


def rank_among_all(similarities: Similarities, pairs: np.ndarray) -> np.ndarray:
    """(n,) the rank, from 1, of the best of b that belongs to each of a, among all that do not; 0 where none does.

    `pairs` (k, 2) are rows of a and b that belong together. Ties count against the model.
    """
    a, b = similarities.a, similarities.b
    ranks = np.zeros(len(a), np.int64)
    owning = np.unique(pairs[:, 0])
    for start in range(0, len(owning), BLOCK):
        rows = owning[start : start + BLOCK]
        own = pairs[np.isin(pairs[:, 0], rows)]
        right = np.zeros((len(rows), len(b)), bool)
        right[np.searchsorted(rows, own[:, 0]), own[:, 1]] = True
        scores = a[rows] @ b.T
        best = np.where(right, scores, -np.inf).max(axis=1, keepdims=True)
        ranks[rows] = 1 + ((scores >= best) & ~right).sum(axis=1)
    return ranks


def best_within(
    images: np.ndarray, phrases: np.ndarray, region_images: np.ndarray, regions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The row (p,) of the region of its image that each phrase is most similar to, -1 where the image has none, and
    the similarity (p,); phrases (p, c) of `images` (p,), regions (r, c) of `region_images` (r,), ascending."""
    pairs = pairs_within(images, region_images)
    scores = np.einsum("ij,ij->i", phrases[pairs[:, 0]], regions[pairs[:, 1]])
    order = np.lexsort([-scores, pairs[:, 0]])
    owning, first = np.unique(pairs[order, 0], return_index=True)
    best, similarity = np.full(len(images), -1), np.full(len(images), -np.inf)
    best[owning], similarity[owning] = pairs[order[first], 1], scores[order[first]]
    return best, similarity

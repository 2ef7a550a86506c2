"""Ranks in both directions by counting, never by sorting, and exactly.

Scores are exact (see pipeline.metrics.lattice): ranks do not depend on the BLAS, the threads, the blocks or the order
of the gallery, and a target has the same score wherever it is computed.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from pipeline import runtime
from pipeline.errors import InputError
from pipeline.mapreduce import LOCAL, map_reduce
from pipeline.metrics.lattice import to_lattice, unit_of
from pipeline.multivectors import Comparison, Items
from pipeline.precision import require_finite

IMAGE_ROWS = 240
"""Images in a block; at most 255, because the counts of a block's columns are bytes."""
SENTENCE_ROWS = 512
"""Sentences in a block; a multiple of 8, at most 8 x 255, because the counts of a block's rows are eight bytes."""
SCORE_ROWS = 256
"""Images whose scores are compared at once."""
SHARES = 64
"""Parts of the sentences for other processes, at most."""


@dataclass(frozen=True)
class Ranks:
    """Ranks from 1; ties count against the model.

    `image_to_sentence` (n,): each image's best sentence among all sentences except the image's other ones;
    `sentence_to_image` (m,): each sentence's image among all images. `sentence_similarity` (m,), where it is asked for:
    each sentence's nearest sentence of the same image among those of the others.
    """

    image_to_sentence: np.ndarray
    sentence_to_image: np.ndarray
    sentence_similarity: np.ndarray | None = None


def count_ranks(
    images: np.ndarray, sentences: np.ndarray, owners: np.ndarray, metric: str, scheduler: str = LOCAL
) -> Ranks:
    """Ranks of images (n, c) and sentences (m, c), where sentence j is of image `owners[j]`.

    On other processes (see `map_reduce`), every worker holds all vectors and its counts. `metric` is `inner_product` or
    `euclidean`. Raises IntegrityError naming a row that is not finite, and InputError naming an image without a
    sentence.
    """
    n, m = len(images), len(sentences)
    require_finite("embeddings", "images", images)
    require_finite("embeddings", "sentences", sentences)
    _require_sentences(owners, n)
    left, right = _lattices(images, sentences, metric)
    pairs = [np.einsum("ij,ij->i", left[owners[part]], right[part]) for part in _blocks(m, 4096)]
    targets = np.concatenate(pairs)
    best, own_best = _best_of_own(targets, owners, n)
    blocks = list(_blocks(m, SENTENCE_ROWS))
    if scheduler != LOCAL:
        shares = [blocks[first::SHARES] for first in range(min(SHARES, len(blocks)))]
        counts = map_reduce(_count, shares, _add_counts, scheduler, (left, right, best, targets))
        image_to_sentence, sentence_to_image = counts
    else:
        sentence_to_image, threads = np.zeros(m, np.int64), runtime.threads()
        shares = [blocks[first::threads] for first in range(threads)]
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(threads) as pool:
            counts = pool.map(lambda share: _count(share, left, right, best, targets, sentence_to_image), shares)
            image_to_sentence = sum(count for count, _ in counts)
    # The counts include the targets: one image for a sentence, all its best sentences for an image.
    return Ranks(image_to_sentence - own_best + 1, sentence_to_image)


def _require_sentences(owners: np.ndarray, n: int) -> None:
    if (without := np.bincount(owners, minlength=n) == 0).any():
        raise InputError(f"image row {without.argmax()} has no sentence; leave such images out of the evaluation")


def _best_of_own(targets: np.ndarray, owners: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each of n images the best score with a sentence of its own (n,), and how many of these have it (n,)."""
    best = np.full(n, -np.inf, targets.dtype)
    np.maximum.at(best, owners, targets)
    return best, np.bincount(owners[targets == best[owners]], minlength=n)


def score(images: Items, sentences: Items, comparison: Comparison) -> np.ndarray:
    """(n, m) in floating point: inner products of vectors, minus their squared distances, or by a ScoreRule."""
    if comparison == "inner_product":
        return images @ sentences.T
    if comparison == "euclidean":
        from scipy.spatial.distance import cdist  # which other scores, and queries, do without

        return -cdist(images, sentences, "sqeuclidean")
    from pipeline.metrics.multivector_scores import multivector_scores  # torch

    return multivector_scores(images, sentences, comparison).numpy()


def rank(images: Items, sentences: Items, owners: np.ndarray, comparison: Comparison, scheduler: str = LOCAL) -> Ranks:
    """Ranks of images and sentences of one vector each, or of several, by their `comparison`."""
    if isinstance(comparison, str):
        return count_ranks(images, sentences, owners, comparison, scheduler)
    from pipeline.metrics.multivector_scores import exact_scores  # torch

    return rank_scores(exact_scores(images, sentences, comparison), owners)


def rank_scores(scores: np.ndarray, owners: np.ndarray) -> Ranks:
    """Ranks from `scores` (n, m) of n images by m sentences, where sentence j is of image `owners[j]`.

    Raises IntegrityError naming a row that is not finite, and InputError naming an image without a sentence.
    """
    n, m = scores.shape
    require_finite("scores", "images", scores)
    _require_sentences(owners, n)
    targets = scores[owners, np.arange(m)]
    best, own_best = _best_of_own(targets, owners, n)
    image_to_sentence, sentence_to_image = np.empty(n, np.int64), np.zeros(m, np.int64)
    for start in range(0, n, SCORE_ROWS):
        block = scores[start : start + SCORE_ROWS]
        image_to_sentence[start : start + SCORE_ROWS] = (block >= best[start : start + SCORE_ROWS, None]).sum(axis=1)
        sentence_to_image += (block >= targets).sum(axis=0)
    return Ranks(image_to_sentence - own_best + 1, sentence_to_image)


def _add_counts(
    one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    return one[0] + other[0], one[1] + other[1]


class _Lattice:
    """Vectors as whole numbers, block by block: `lattice[rows]` is (k, d) float64."""

    def __init__(self, vectors: np.ndarray, unit: float, side: str | None) -> None:
        self.vectors, self.unit, self.side = vectors, unit, side

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        x = to_lattice(self.vectors[rows], self.unit)
        if self.side is None:
            return x
        # -|a - b|**2 as an inner product: (2a, -|a|**2, 1) . (b, 1, -|b|**2)
        squares = np.einsum("ij,ij->i", x, x)[:, None]
        ones = np.ones_like(squares)
        return np.hstack([2 * x, -squares, ones] if self.side == "left" else [x, ones, -squares])


def _lattices(images: np.ndarray, sentences: np.ndarray, metric: str) -> tuple[_Lattice, _Lattice]:
    units = [unit_of(x) for x in (images, sentences)]
    if metric == "inner_product":
        return _Lattice(images, units[0], None), _Lattice(sentences, units[1], None)
    if metric == "euclidean":
        return _Lattice(images, max(units), "left"), _Lattice(sentences, max(units), "right")
    raise ValueError(f"unknown metric {metric}; there are inner_product and euclidean")


def _blocks(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _count(
    blocks: Sequence[slice], left: _Lattice, right: _Lattice, best: np.ndarray, targets: np.ndarray,
    above_target: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """For the sentences in `blocks`: (n,) how many score at least `best` (n,) with each image, and (m,) how many images
    score at least its target with each sentence, added to `above_target` (m,)."""
    above_target = np.zeros(len(targets), np.int64) if above_target is None else above_target
    above_best = np.zeros(len(best), np.int64)
    memory = np.empty(IMAGE_ROWS * SENTENCE_ROWS)  # fresh memory for every block costs as much as the counting
    for columns in blocks:
        b, width = right[columns], columns.stop - columns.start
        mask = np.zeros((IMAGE_ROWS, SENTENCE_ROWS), bool)
        for rows in _blocks(len(best), IMAGE_ROWS):
            height = rows.stop - rows.start
            scores = np.matmul(left[rows], b.T, out=memory[: height * width].reshape(height, width))
            np.greater_equal(scores, best[rows, None], out=mask[:height, :width])
            eights = mask.view(np.uint64).sum(axis=1).view(np.uint8)
            above_best[rows] += eights.reshape(-1, 8).sum(axis=1, dtype=np.int64)[:height]
            np.greater_equal(scores, targets[columns], out=mask[:height, :width])
            above_target[columns] += np.add.reduce(mask[:height].view(np.uint8), axis=0, dtype=np.uint8)[:width]
    return above_best, above_target

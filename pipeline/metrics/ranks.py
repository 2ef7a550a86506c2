"""Ranks by counting, never by sorting, of blocks of scores in double precision.

A product of matrices gives equal vectors scores that differ in the last bits, depending on their position, so that
chance would break ties. So scores that differ by no more than rounding may be taken as equal, which those of different
vectors, stored in single precision, hardly ever do.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

from pipeline.compute import runtime
from pipeline.compute.multivectors import Comparison, Items, one_vector_each, several_vectors_each
from pipeline.compute.precision import require_finite
from pipeline.errors import InputError

ROUNDING = 2.0**-52
"""Times the number of products, and the greatest sum of their sizes: the most by which the scores of equal vectors may
differ (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1)."""
PRODUCTS = 4096
"""Counted for a score of several vectors, whose products are summed word by word."""
BLOCK = 255, 256
"""Images and sentences whose scores are compared at once; they stay in the cache, and a byte counts the images."""
PAIRS = 4096
"""Sentences whose scores with their own images are computed at once."""


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


def count_ranks(images: np.ndarray, sentences: np.ndarray, owners: np.ndarray, metric: str) -> Ranks:
    """Ranks of images (n, c) and sentences (m, c), where sentence j is of image `owners[j]`; `metric` is
    `inner_product` or `euclidean`. Raises IntegrityError naming a row that is not finite, and InputError naming an
    image without a sentence."""
    require_finite("embeddings", "images", images)
    require_finite("embeddings", "sentences", sentences)
    a, b, tie = _as_products(images, sentences, metric)
    targets = np.empty(len(owners))
    for part in _slices(len(owners), PAIRS):
        np.einsum("ij,ij->i", a[owners[part]], b[part], out=targets[part])
    return _count(lambda rows, columns: a[rows] @ b[columns].T, targets, owners, len(a), tie)


def rank_scores(scores: np.ndarray, owners: np.ndarray, tie: float = 0) -> Ranks:
    """Ranks from `scores` (n, m) of n images by m sentences, where sentence j is of image `owners[j]`; those that
    differ by at most `tie` are equal. Raises as `count_ranks`."""
    require_finite("scores", "images", scores)
    targets = scores[owners, np.arange(len(owners))]
    return _count(lambda rows, columns: scores[rows, columns], targets, owners, len(scores), tie)


def _count(
    scores: Callable[[slice, slice], np.ndarray], targets: np.ndarray, owners: np.ndarray, n: int, tie: float
) -> Ranks:
    """Ranks of n images and of the sentences whose images are `owners` (m,), by `scores(rows, columns)` of some images
    and sentences; `targets` (m,) are those of each sentence with its own image."""
    if (without := np.bincount(owners, minlength=n) == 0).any():
        raise InputError(f"image row {without.argmax()} has no sentence; leave such images out of the evaluation")
    m, best = len(owners), np.full(n, -np.inf)
    np.maximum.at(best, owners, targets)
    least_of_image, least_of_sentence = best - tie, targets - tie

    def count(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        above_best = np.zeros(rows.stop - rows.start, np.int64)
        above_target = np.empty(m, np.int64)
        for columns in _slices(m, BLOCK[1]):
            block = scores(rows, columns)
            above_best += (block >= least_of_image[rows, None]).sum(axis=1)
            higher = (block >= least_of_sentence[columns]).view(np.uint8)
            above_target[columns] = higher.sum(axis=0, dtype=np.uint8)
        return above_best, above_target

    with _products().limit(limits=1, user_api="blas"), ThreadPoolExecutor(runtime.threads()) as pool:
        counts = list(pool.map(count, _slices(n, BLOCK[0])))
    # The counts include the targets: one image for a sentence, all its best sentences for an image.
    own_best = np.bincount(owners[targets >= least_of_image[owners]], minlength=n)
    image_to_sentence = np.concatenate([above_best for above_best, _ in counts]) - own_best + 1
    return Ranks(image_to_sentence, np.sum([above_target for _, above_target in counts], axis=0))


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


@cache
def _products() -> ThreadpoolController:
    """numpy's library, for which all that the process has loaded is looked through once."""
    return ThreadpoolController()


def _as_products(x: np.ndarray, y: np.ndarray, metric: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Vectors (n, c') and (m, c') float64 whose inner products are the scores of x (n, c) and y (m, c) by the `metric`,
    and the difference of scores that are equal."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    squares = [np.einsum("ij,ij->i", side, side)[:, None] for side in (x, y)]
    longest = [float(np.sqrt(square.max(initial=0))) for square in squares]
    if metric == "inner_product":
        return x, y, ROUNDING * x.shape[1] * longest[0] * longest[1]
    # -|a - b|**2 as an inner product: (2a, -|a|**2, 1) . (b, 1, -|b|**2)
    a = np.hstack([2 * x, -squares[0], np.ones_like(squares[0])])
    b = np.hstack([y, np.ones_like(squares[1]), -squares[1]])
    return a, b, ROUNDING * a.shape[1] * sum(longest) ** 2


def score(images: Items, sentences: Items, comparison: Comparison) -> np.ndarray:
    """Score n images by m sentences, (n, m): inner products, minus squared distances, or scores by a ScoreRule."""
    if not isinstance(comparison, str):
        from pipeline.metrics.multivector_scores import multivector_scores  # imports torch

        return multivector_scores(several_vectors_each(images), several_vectors_each(sentences), comparison).numpy()
    x, y = one_vector_each(images), one_vector_each(sentences)
    if comparison == "inner_product":
        return x @ y.T
    from scipy.spatial.distance import cdist  # Queries and other scores do not need it.

    return -cdist(x, y, "sqeuclidean")


def rank(images: Items, sentences: Items, owners: np.ndarray, comparison: Comparison) -> Ranks:
    """Rank images and sentences of one vector each, or of several, by their `comparison`."""
    if isinstance(comparison, str):
        return count_ranks(one_vector_each(images), one_vector_each(sentences), owners, comparison)
    from pipeline.metrics.multivector_scores import exact_scores  # imports torch

    scores = exact_scores(several_vectors_each(images), several_vectors_each(sentences), comparison)
    return rank_scores(scores, owners, ROUNDING * PRODUCTS * float(np.abs(scores).max(initial=0)))


def similarity_ranks(sentences: np.ndarray, owners: np.ndarray, metric: str) -> np.ndarray:
    """(m,) the rank, from 1, of each sentence's nearest sentence of the same image, which has several, among all
    others: the mean of these is that of Socher et al. 2014, section 6.1.

    sentences (m, c) are of images owners (m,); `metric` and errors as in `count_ranks`. Ties count against the model.
    """
    ranks = np.empty(len(owners), np.int64)
    for rows, scores, same, tie in _among_sentences(sentences, owners, metric):
        others = same & (rows[:, None] != np.arange(len(owners)))
        best = np.where(others, scores, -np.inf).max(axis=1)
        ranks[rows] = 1 + ((scores >= best[:, None] - tie) & ~same).sum(axis=1)
    return ranks


def pair_ranks(sentences: np.ndarray, owners: np.ndarray, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (p, 2) of two sentences of one image, each in both orders, and the rank (p,), from 1, of the second among
    the neighbours of the first that are of other images; else as `similarity_ranks`."""
    pairs, ranks = [], []
    for rows, scores, same, tie in _among_sentences(sentences, owners, metric):
        first, second = np.nonzero(same & (rows[:, None] != np.arange(len(owners))))
        ordered = np.sort(np.where(same, -np.inf, scores), axis=1)
        least = scores[first, second] - tie
        below = np.array([np.searchsorted(ordered[row], value) for row, value in zip(first, least, strict=True)], int)
        pairs.append(np.stack([rows[first], second], axis=1))
        ranks.append(1 + len(owners) - below)
    return np.concatenate(pairs), np.concatenate(ranks)


def _among_sentences(
    sentences: np.ndarray, owners: np.ndarray, metric: str
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, float]]:
    """Rows (b,), their scores (b, m) with all sentences, which of these are of the same image (b, m), and the
    difference of scores that are equal."""
    require_finite("embeddings", "sentences", sentences)
    a, b, tie = _as_products(sentences, sentences, metric)
    for block in _slices(len(b), 2 * BLOCK[0]):
        rows = np.arange(block.start, block.stop)
        yield rows, a[rows] @ b.T, owners[rows][:, None] == owners, tie

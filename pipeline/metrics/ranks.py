"""Ranks of images and sentences, counted from blocks of scores in double precision without sorting.

In a matrix product, equal vectors get scores that may differ in the last bits, depending on their position, so that
ties would be broken by chance. Scores that differ by no more than rounding therefore count as equal. The scores of
different vectors, which are stored in single precision, almost never differ by so little.
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
"""Relative rounding error of one operation in float64.

A score is a sum of products. The scores of equal vectors differ by at most this error, times the number of the
products, times the greatest sum of the absolute values of the products (Higham, Accuracy and Stability of Numerical
Algorithms, 2002, section 3.1).
"""
PRODUCTS_PER_SCORE = 4096
"""Assumed number of products in the score of a multi-vector image and sentence. The largest difference of scores that
counts as a tie is proportional to this number."""
BLOCK_IMAGES = 255
"""Maximum number of images whose scores with a block of sentences are compared at once. For each sentence, the images
that score at least as high as the image of the sentence are counted in one byte, which holds at most 255."""
BLOCK_SENTENCES = 256
"""Maximum number of sentences in a block of scores. A block of BLOCK_IMAGES by BLOCK_SENTENCES scores stays in the
cache of a CPU."""
BLOCK_PAIRS = 4096
"""Maximum number of sentences whose scores with their own images are computed at once."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of n images and m sentences, counted from 1. Ties count against the model.

    `image_to_sentence` (n,) has a rank for each image as the query: the rank of the best of its own sentences among the
    sentences of other images. `sentence_to_image` (m,) has a rank for each sentence as the query: the rank of its image
    among all images. `sentence_similarity` (m,) has, for each sentence as the query, the rank of the nearest other
    sentence of the same image among the sentences of other images. `sentence_similarity` is None if it was not
    computed.
    """

    image_to_sentence: np.ndarray
    sentence_to_image: np.ndarray
    sentence_similarity: np.ndarray | None = None


def count_ranks(images: np.ndarray, sentences: np.ndarray, owners: np.ndarray, metric: str) -> Ranks:
    """Rank images (n, c) and sentences (m, c), one vector each, by their scores with each other.

    Sentence j belongs to image `owners[j]`. `metric` is `inner_product` or `euclidean`. Raises IntegrityError if a
    vector is not finite, and InputError if an image has no sentence. The message of either error names the row.
    """
    require_finite("embeddings", "images", images)
    require_finite("embeddings", "sentences", sentences)
    a, b, tie = _as_products(images, sentences, metric)
    targets = np.empty(len(owners))
    for part in _slices(len(owners), BLOCK_PAIRS):
        np.einsum("ij,ij->i", a[owners[part]], b[part], out=targets[part])
    return _count(lambda rows, columns: a[rows] @ b[columns].T, targets, owners, len(a), tie)


def rank_scores(scores: np.ndarray, owners: np.ndarray, tie: float = 0) -> Ranks:
    """Rank n images and m sentences by their `scores` (n, m), where a greater score is better.

    Sentence j belongs to image `owners[j]`. Scores that differ by at most `tie` count as equal. Raises IntegrityError
    if a score is not finite, and InputError if an image has no sentence.
    """
    require_finite("scores", "images", scores)
    targets = scores[owners, np.arange(len(owners))]
    return _count(lambda rows, columns: scores[rows, columns], targets, owners, len(scores), tie)


def _count(
    scores: Callable[[slice, slice], np.ndarray], targets: np.ndarray, owners: np.ndarray, n: int, tie: float
) -> Ranks:
    """Rank n images and m sentences, given a function that computes their scores block by block.

    `scores(rows, columns)` returns the scores of a slice of the images with a slice of the sentences. `targets` (m,)
    are the scores of the sentences with their own images `owners` (m,). Scores that differ by at most `tie` count as
    equal. Raises InputError if an image has no sentence.
    """
    if (without := np.bincount(owners, minlength=n) == 0).any():
        raise InputError(
            f"The image in row {without.argmax()} has no caption (rows are counted from 0). Leave images without"
            " captions out of the evaluation."
        )
    m = len(owners)
    best = np.full(n, -np.inf)
    np.maximum.at(best, owners, targets)
    least_of_image = best - tie
    least_of_sentence = targets - tie

    def count(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        above_best = np.zeros(rows.stop - rows.start, np.int64)
        above_target = np.empty(m, np.int64)
        for columns in _slices(m, BLOCK_SENTENCES):
            block = scores(rows, columns)
            above_best += (block >= least_of_image[rows, None]).sum(axis=1)
            higher = (block >= least_of_sentence[columns]).view(np.uint8)
            above_target[columns] = higher.sum(axis=0, dtype=np.uint8)
        return above_best, above_target

    with _thread_pools().limit(limits=1, user_api="blas"), ThreadPoolExecutor(runtime.threads()) as pool:
        counts = list(pool.map(count, _slices(n, BLOCK_IMAGES)))
    # The counts include the targets themselves: the image of a sentence, and those sentences of an image that tie with
    # the best sentence of the image. The latter are subtracted.
    own_best = np.bincount(owners[targets >= least_of_image[owners]], minlength=n)
    image_to_sentence = np.concatenate([above_best for above_best, _ in counts]) - own_best + 1
    return Ranks(image_to_sentence, np.sum([above_target for _, above_target in counts], axis=0))


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


@cache
def _thread_pools() -> ThreadpoolController:
    """Return the controller of the BLAS threads. The result is cached, because making a controller searches all
    libraries of the process."""
    return ThreadpoolController()


def _as_products(x: np.ndarray, y: np.ndarray, metric: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Convert x (n, c) and y (m, c) to vectors whose inner products are the scores of x and y by `metric`.

    Returns the vectors (n, c') and (m, c') float64, and the largest difference of scores that count as equal.
    """
    x = x.astype(np.float64)
    y = y.astype(np.float64)
    squares = [np.einsum("ij,ij->i", side, side)[:, None] for side in (x, y)]
    longest = [float(np.sqrt(square.max(initial=0))) for square in squares]
    if metric == "inner_product":
        return x, y, ROUNDING * x.shape[1] * longest[0] * longest[1]
    # The score -|a - b|**2 equals the inner product (2a, -|a|**2, 1) . (b, 1, -|b|**2).
    a = np.hstack([2 * x, -squares[0], np.ones_like(squares[0])])
    b = np.hstack([y, np.ones_like(squares[1]), -squares[1]])
    return a, b, ROUNDING * a.shape[1] * sum(longest) ** 2


def score(images: Items, sentences: Items, comparison: Comparison) -> np.ndarray:
    """Score n images by m sentences, and return the scores as an array (n, m). A greater score is better.

    `comparison` decides the scores: `inner_product`, `euclidean` (negative squared distances), or a ScoreRule for
    images and sentences with several vectors.
    """
    if not isinstance(comparison, str):
        from pipeline.metrics.multivector_scores import multivector_scores  # The import of torch takes seconds.

        return multivector_scores(several_vectors_each(images), several_vectors_each(sentences), comparison).numpy()
    x = one_vector_each(images)
    y = one_vector_each(sentences)
    if comparison == "inner_product":
        return x @ y.T
    from scipy.spatial.distance import cdist  # Other scores do not need this import.

    return -cdist(x, y, "sqeuclidean")


def rank(images: Items, sentences: Items, owners: np.ndarray, comparison: Comparison) -> Ranks:
    """Rank n images and m sentences, each with one vector or all with several vectors, by their scores with each other.

    Sentence j belongs to image `owners[j]`. `comparison` decides the scores, as in `score`. Raises IntegrityError if a
    vector or a score is not finite, and InputError if an image has no sentence.
    """
    if isinstance(comparison, str):
        return count_ranks(one_vector_each(images), one_vector_each(sentences), owners, comparison)
    from pipeline.metrics.multivector_scores import exact_scores  # The import of torch takes seconds.

    scores = exact_scores(several_vectors_each(images), several_vectors_each(sentences), comparison)
    return rank_scores(scores, owners, ROUNDING * PRODUCTS_PER_SCORE * float(np.abs(scores).max(initial=0)))


def similarity_ranks(sentences: np.ndarray, owners: np.ndarray, metric: str) -> np.ndarray:
    """Compute a rank for each of m sentences as the query: the rank of the nearest other sentence of the same image
    among the sentences of other images.

    Socher et al. 2014, section 6.1, report the mean of these ranks. The sentences (m, c) belong to the images `owners`
    (m,), each of which has at least two sentences. `metric` is `inner_product` or `euclidean`. Returns the ranks (m,)
    from 1. Ties count against the model. Raises IntegrityError if a row is not finite.
    """
    ranks = np.empty(len(owners), np.int64)
    for rows, scores, same, tie in _among_sentences(sentences, owners, metric):
        others = same & (rows[:, None] != np.arange(len(owners)))
        best = np.where(others, scores, -np.inf).max(axis=1)
        ranks[rows] = 1 + ((scores >= best[:, None] - tie) & ~same).sum(axis=1)
    return ranks


def pair_ranks(sentences: np.ndarray, owners: np.ndarray, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Rank the second sentence of each pair of sentences of one image, where the first sentence is the query.

    The second sentence competes with all sentences of other images. The sentences (m, c) belong to the images `owners`
    (m,). `metric` is `inner_product` or `euclidean`. Returns the pairs (p, 2) of row numbers, and the ranks (p,) from
    1. Two sentences of an image are two pairs, one in each order, and an image with a single sentence has no pair. Ties
    count against the model. Raises IntegrityError if a row is not finite.
    """
    pairs = []
    ranks = []
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
    """Score all pairs of m sentences, block by block.

    Yields for each block the row numbers (b,) of its sentences, the scores (b, m) of the block with all sentences, an
    array (b, m) bool that says whether two sentences belong to the same image, and the largest difference of scores
    that count as equal. Raises IntegrityError if a row is not finite.
    """
    require_finite("embeddings", "sentences", sentences)
    a, b, tie = _as_products(sentences, sentences, metric)
    for block in _slices(len(b), 2 * BLOCK_IMAGES):
        rows = np.arange(block.start, block.stop)
        yield rows, a[rows] @ b.T, owners[rows][:, None] == owners, tie

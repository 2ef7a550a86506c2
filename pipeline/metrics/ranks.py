"""Ranks by counting, never by sorting, of blocks of scores, as exact as in double precision.

A product of matrices gives equal vectors scores that differ in the last bits, depending on their position, so that
chance would break ties. So scores that differ by no more than rounding may be taken as equal, which those of different
vectors, stored in single precision, hardly ever do.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

from pipeline import runtime
from pipeline.errors import InputError
from pipeline.multivectors import Comparison, Items
from pipeline.precision import require_finite

ROUNDING = 2.0**-52
"""Times the number of products, and the greatest sum of their sizes: the most by which the scores of equal vectors may
differ (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1)."""
PRODUCTS = 4096
"""Counted for a score of several vectors, whose products are summed word by word."""
BLOCK = 256, 512
"""Images and sentences whose scores are compared at once; they stay in the cache."""
PAIRS = 4096
"""Pairs whose scores are computed at once, each for itself."""


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


class _Products:
    """Inner products of a (n, c) and b (m, c), equal where they differ by at most `tie`. They are computed in single
    precision, which takes half the time; those that it cannot tell from a threshold, once more in double."""

    def __init__(self, a: np.ndarray, b: np.ndarray, tie: float) -> None:
        self.a, self.b, self.tie = a, b, tie
        self._single = a.astype(np.float32), b.astype(np.float32)
        # `tie` is the most by which double precision is off; single precision also rounds a, b and the threshold
        self._doubt = 2.0**-24 / ROUNDING * (1 + 3 / a.shape[1]) * tie + float(np.finfo(np.float32).tiny)

    def pairs(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """(p,) those of a's rows i (p,) with b's rows j (p,)."""
        products = np.empty(len(i))
        for part in _slices(len(i), PAIRS):
            np.einsum("ij,ij->i", self.a[i[part]], self.b[j[part]], out=products[part])
        return products

    def block(self, rows: slice, columns: slice, memory: np.ndarray) -> np.ndarray:
        return np.matmul(self._single[0][rows], self._single[1][columns].T, out=memory)

    def at_least(self, scores: np.ndarray, rows: slice, columns: slice, least: np.ndarray) -> np.ndarray:
        """Where the products of rows and columns, about `scores`, are at least `least`, (rows, 1) or (columns,)."""
        higher = scores >= (least + self._doubt).astype(np.float32)
        doubtful = np.flatnonzero(higher != (scores >= (least - self._doubt).astype(np.float32)))
        if len(doubtful) > higher.size // 16:  # a model that gives all the same vector
            return self.a[rows] @ self.b[columns].T >= least
        i, j = np.divmod(doubtful, scores.shape[1])
        exact = self.pairs(rows.start + i, columns.start + j)
        higher[i, j] = exact >= np.broadcast_to(least, scores.shape)[i, j]
        return higher


class _Given:
    """Scores (n, m) that are there; those that differ by at most `tie` are equal."""

    def __init__(self, scores: np.ndarray, tie: float) -> None:
        self.scores, self.tie = scores, tie

    def pairs(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        return self.scores[i, j]

    def block(self, rows: slice, columns: slice, memory: np.ndarray) -> np.ndarray:
        return self.scores[rows, columns]

    def at_least(self, scores: np.ndarray, rows: slice, columns: slice, least: np.ndarray) -> np.ndarray:
        return scores >= least


def count_ranks(images: np.ndarray, sentences: np.ndarray, owners: np.ndarray, metric: str) -> Ranks:
    """Ranks of images (n, c) and sentences (m, c), where sentence j is of image `owners[j]`; `metric` is
    `inner_product` or `euclidean`. Raises IntegrityError naming a row that is not finite, and InputError naming an
    image without a sentence."""
    require_finite("embeddings", "images", images)
    require_finite("embeddings", "sentences", sentences)
    return _count(_Products(*_as_products(images, sentences, metric)), owners, len(images))


def rank_scores(scores: np.ndarray, owners: np.ndarray, tie: float = 0) -> Ranks:
    """Ranks from `scores` (n, m) of n images by m sentences, where sentence j is of image `owners[j]`; those that
    differ by at most `tie` are equal. Raises as `count_ranks`."""
    require_finite("scores", "images", scores)
    return _count(_Given(scores, tie), owners, len(scores))


def _count(scores: _Products | _Given, owners: np.ndarray, n: int) -> Ranks:
    """Ranks of n images and of the sentences whose images are `owners` (m,)."""
    if (without := np.bincount(owners, minlength=n) == 0).any():
        raise InputError(f"image row {without.argmax()} has no sentence; leave such images out of the evaluation")
    m, best = len(owners), np.full(n, -np.inf)
    targets = scores.pairs(owners, np.arange(m))
    np.maximum.at(best, owners, targets)
    least_of_image, least_of_sentence = best - scores.tie, targets - scores.tie

    def count(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        above_best, above_target, memory = 0, np.empty(m, np.int64), np.empty(BLOCK, np.float32)
        for columns in _slices(m, BLOCK[1]):
            block = scores.block(rows, columns, memory[: rows.stop - rows.start, : columns.stop - columns.start])
            above_best += scores.at_least(block, rows, columns, least_of_image[rows, None]).sum(axis=1)
            # as bytes, which are added up faster: there are at most 256 rows, and the first is added on its own
            higher = scores.at_least(block, rows, columns, least_of_sentence[columns]).view(np.uint8)
            above_target[columns] = higher[1:].sum(axis=0, dtype=np.uint8)
            above_target[columns] += higher[0]
        return above_best, above_target

    with _products().limit(limits=1, user_api="blas"), ThreadPoolExecutor(runtime.threads()) as pool:
        counts = list(pool.map(count, _slices(n, BLOCK[0])))
    # The counts include the targets: one image for a sentence, all its best sentences for an image.
    own_best = np.bincount(owners[targets >= least_of_image[owners]], minlength=n)
    image_to_sentence = np.concatenate([above_best for above_best, _ in counts]) - own_best + 1
    return Ranks(image_to_sentence, sum(above_target for _, above_target in counts))


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
    # by a power of two, which changes no order and no bit, so that no product leaves single precision
    power = 2.0 ** -max(-1000, int(np.frexp(max(abs(side).max(initial=0) for side in (x, y)))[1]))
    x *= power
    y *= power
    squares = [np.einsum("ij,ij->i", side, side)[:, None] for side in (x, y)]
    longest = [float(np.sqrt(square.max(initial=0))) for square in squares]
    if metric == "inner_product":
        return x, y, ROUNDING * x.shape[1] * longest[0] * longest[1]
    # -|a - b|**2 as an inner product: (2a, -|a|**2, 1) . (b, 1, -|b|**2)
    a = np.hstack([2 * x, -squares[0], np.ones_like(squares[0])])
    b = np.hstack([y, np.ones_like(squares[1]), -squares[1]])
    return a, b, ROUNDING * a.shape[1] * sum(longest) ** 2


def score(images: Items, sentences: Items, comparison: Comparison) -> np.ndarray:
    """(n, m) in floating point: inner products of vectors, minus their squared distances, or by a ScoreRule."""
    if comparison == "inner_product":
        return images @ sentences.T
    if comparison == "euclidean":
        from scipy.spatial.distance import cdist  # which other scores, and queries, do without

        return -cdist(images, sentences, "sqeuclidean")
    from pipeline.metrics.multivector_scores import multivector_scores  # torch

    return multivector_scores(images, sentences, comparison).numpy()


def rank(images: Items, sentences: Items, owners: np.ndarray, comparison: Comparison) -> Ranks:
    """Ranks of images and sentences of one vector each, or of several, by their `comparison`."""
    if isinstance(comparison, str):
        return count_ranks(images, sentences, owners, comparison)
    from pipeline.metrics.multivector_scores import exact_scores  # torch

    scores = exact_scores(images, sentences, comparison)
    return rank_scores(scores, owners, ROUNDING * PRODUCTS * float(np.abs(scores).max(initial=0)))


def similarity_ranks(sentences: np.ndarray, owners: np.ndarray, metric: str) -> np.ndarray:
    """(m,) the rank, from 1, of each sentence's nearest sentence of the same image, which has several, among all
    others: the mean of these is that of Socher et al. 2014, section 6.1.

    sentences (m, c), owners (m,) the image of each; `metric` as in `count_ranks`, which says what is raised. Ties count
    against the model.
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

"""Ranks in both directions by counting, never by sorting, and exactly.

Scores are exact (see pipeline.metrics.lattice): ranks do not depend on the BLAS, the threads, the blocks or the order
of the gallery, and a target has the same score wherever it is computed.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

from pipeline import runtime
from pipeline.errors import InputError
from pipeline.mapreduce import LOCAL, map_reduce
from pipeline.metrics.counting import SENTENCE_ROWS, SETTLED, blocks_of, count, score_pairs, sides
from pipeline.multivectors import Comparison, Items
from pipeline.precision import require_finite

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
    left, right = sides(images, sentences, metric)
    threads = runtime.threads()
    with _products().limit(limits=1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        each = pool.map(lambda part: score_pairs(left, right, owners[part], part), blocks_of(m, SETTLED))
        targets = np.concatenate(list(each))
        best, own_best = _best_of_own(targets, owners, n)
        if scheduler != LOCAL:
            blocks = blocks_of(m, SENTENCE_ROWS)
            shares = [blocks[first::SHARES] for first in range(min(SHARES, len(blocks)))]
            counts = map_reduce(count, shares, _add_counts, scheduler, (left, right, owners, best, targets))
            image_to_sentence, sentence_to_image = counts
        else:
            sentence_to_image, blocks = np.zeros(m, np.int64), iter(blocks_of(m, SENTENCE_ROWS, threads))
            found = pool.map(  # each thread takes the next block when it is done with its last one
                lambda _: count(blocks, left, right, owners, best, targets, sentence_to_image), range(threads)
            )
            image_to_sentence = sum(above for above, _ in found)
    # The counts include the targets: one image for a sentence, all its best sentences for an image.
    return Ranks(image_to_sentence - own_best + 1, sentence_to_image)


@cache
def _products() -> ThreadpoolController:
    """numpy's library, for which all that the process has loaded is looked through once."""
    return ThreadpoolController()


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

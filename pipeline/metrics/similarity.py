"""How close sentences of one image are to each other: the mean rank of Socher et al. 2014, section 6.1."""

from collections.abc import Iterator

import numpy as np

from pipeline.errors import InputError
from pipeline.metrics.lattice import to_lattice
from pipeline.precision import require_finite

BLOCK = 512
"""Sentences compared with all others at once."""


def similarity_ranks(sentences: np.ndarray, owners: np.ndarray, metric: str) -> np.ndarray:
    """(m,) the rank, from 1, of each sentence's nearest sentence of the same image among all others.

    sentences (m, c), owners (m,) the image of each; `metric` is `inner_product` or `euclidean`. Ties count against the
    model; scores are exact (see pipeline.metrics.lattice). Raises IntegrityError naming a row that is not finite, and
    InputError naming a sentence that is the only one of its image.
    """
    if (alone := np.bincount(owners)[owners] < 2).any():
        raise InputError(f"sentence row {alone.argmax()} is the only one of its image; leave such sentences out")
    ranks = np.empty(len(owners), np.int64)
    for rows, scores, same in _blocks(sentences, owners, metric):
        others = same.copy()
        others[np.arange(len(rows)), rows] = False
        best = np.where(others, scores, -np.inf).max(axis=1)
        ranks[rows] = 1 + ((scores >= best[:, None]) & ~same).sum(axis=1)
    return ranks


def pair_ranks(sentences: np.ndarray, owners: np.ndarray, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (p, 2) of two sentences of one image, each in both orders, and the rank (p,), from 1, of the second among
    the neighbours of the first that are of other images; else as `similarity_ranks`."""
    pairs, ranks = [], []
    for rows, scores, same in _blocks(sentences, owners, metric):
        first, second = np.nonzero(same & (rows[:, None] != np.arange(len(owners))))
        ordered = np.sort(np.where(same, -np.inf, scores), axis=1)
        own = scores[first, second]
        below = np.array([np.searchsorted(ordered[row], value) for row, value in zip(first, own, strict=True)], int)
        pairs.append(np.stack([rows[first], second], axis=1))
        ranks.append(1 + len(owners) - below)
    return np.concatenate(pairs), np.concatenate(ranks)


def _blocks(
    sentences: np.ndarray, owners: np.ndarray, metric: str
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Rows (b,), their scores (b, m) with all sentences, and which of these are of the same image (b, m)."""
    require_finite("embeddings", "sentences", sentences)
    x = to_lattice(sentences)
    less = np.einsum("ij,ij->i", x, x) if metric == "euclidean" else np.zeros(len(x))
    for start in range(0, len(x), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(x)))
        yield rows, 2 * (x[rows] @ x.T) - less, owners[rows][:, None] == owners

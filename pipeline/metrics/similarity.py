"""How close sentences of one image are to each other: the mean rank of Socher et al. 2014, section 6.1."""

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
    require_finite("embeddings", "sentences", sentences)
    if (alone := np.bincount(owners)[owners] < 2).any():
        raise InputError(f"sentence row {alone.argmax()} is the only one of its image; leave such sentences out")
    x = to_lattice(sentences)
    less = np.einsum("ij,ij->i", x, x) if metric == "euclidean" else np.zeros(len(x))
    ranks = np.empty(len(x), np.int64)
    for start in range(0, len(x), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(x)))
        scores = 2 * (x[rows] @ x.T) - less
        same = owners[rows][:, None] == owners
        others = same.copy()
        others[np.arange(len(rows)), rows] = False
        best = np.where(others, scores, -np.inf).max(axis=1)
        ranks[rows] = 1 + ((scores >= best[:, None]) & ~same).sum(axis=1)
    return ranks

"""Queries made of a photograph and words, as sums of unit vectors."""

import numpy as np

from pipeline.errors import InputError
from pipeline.index.gallery import Gallery


def blend(image: np.ndarray, sentence: np.ndarray, weight: float) -> np.ndarray:
    """(1, c) of unit length, along (1 - weight) `image` + weight `sentence`, (1, c), whose lengths do not count.

    Raises InputError where nothing is left.
    """
    return _unit((1 - weight) * _unit(image[0]).astype(np.float64)[0] + weight * _unit(sentence[0])[0])


def compose(image: np.ndarray, minus: np.ndarray, plus: np.ndarray) -> np.ndarray:
    """(1, c) of unit length: (q - w_n + w_p) / |q - w_n + w_p| (Kiros et al. 2014, eq. 15).

    Paper to code: q `image` (1, c); w_n the rows of `minus` (a, c) and w_p those of `plus` (b, c), one for each word;
    all of unit length. Raises InputError where nothing is left.
    """
    query = image[0].astype(np.float64) - minus.sum(axis=0, dtype=float) + plus.sum(axis=0, dtype=float)
    return _unit(query)


def _unit(query: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(query)
    if length < np.sqrt(np.finfo(np.float32).eps):
        raise InputError("the image and the words cancel each other out; use other words")
    return (query / length).astype(np.float32)[None]


def search_around_mean(
    gallery: Gallery, query: np.ndarray, top: int, among: int, allowed: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The rows (k,) of the `top` nearest to `query` (1, c), among those that are `allowed`, and their scores (k,).

    The `among` nearest are put in the order of their distance to their own mean, so that the one poor result among
    good ones comes last of them; 0 leaves all in the order of their scores.
    """
    found = gallery.search(query, max(top, among), allowed)
    kept = found.rows[0] >= 0
    rows, scores = found.rows[0][kept], found.scores[0][kept]
    if among > 1 and len(rows):
        vectors = gallery.reconstruct(rows[:among])
        order = np.argsort(np.linalg.norm(vectors - vectors.mean(axis=0), axis=1), kind="stable")
        rows[:among], scores[:among] = rows[order], scores[order]
    return rows[:top], scores[:top]

"""The nearest regions for some words, of a model with one vector a region."""

import numpy as np


def nearest_regions(
    rows: np.ndarray, vectors: np.ndarray, query: np.ndarray, top: int, allowed: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The places (k,) of the `top` of `vectors` (r, c) with the greatest products with `query` (c,), at most one of
    each image, and these products; `rows` (r,) has each region's image, of which only those `allowed` (n,) count."""
    scores = vectors @ query
    places = np.arange(len(rows)) if allowed is None else np.flatnonzero(allowed[rows])
    places = places[np.argsort(-scores[places], kind="stable")]
    _, first = np.unique(rows[places], return_index=True)
    best = places[np.sort(first)[:top]]
    return best, scores[best]

"""Chooses the photos of a collection that should get captions first. The choice uses only the features of the photos,
and prefers photos that represent the collection."""

import heapq
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import scipy

from pipeline.errors import UsageError
from pipeline.models.linear.projection import unit_rows

DIRECTIONS = 64
"""Maximum number of principal directions of the features in which photos are compared."""
MAX_COMPARED = 5000
"""Maximum number of photos that are compared with each other, unless more photos than this are to be chosen."""
HELD_OUT_INTERVAL = 10
"""Number by which the number of chosen photos is divided to get the size of dev, and also the size of test. At least
this number of photos must be chosen, so that dev and test have a photo each."""


class ChosenPhotos(NamedTuple):
    """The row numbers of the photos to caption for each split. `train` has the photos that represent the collection,
    in the order in which they were chosen. `dev` and `test` have random photos."""

    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray


def choose_photos(
    views: Mapping[str, np.ndarray], count: int, seed: int = 0, captioned: np.ndarray | None = None
) -> ChosenPhotos:
    """Choose `count` of n photos by their features `views`, encoder -> (n, D). A tenth of the chosen photos, rounded
    down, is for dev, a tenth is for test, and the others are for train.

    The features of each encoder are scaled to unit length, so that all encoders count equally. The photos for dev and
    test are drawn at random, as `seed` decides, so that they represent the collection. The photos in the rows
    `captioned` (m,) have captions already. These photos are not chosen, and the photos for train are chosen to
    complement them. If `captioned` is None, no photo has captions. Raises UsageError if `count` is less than
    HELD_OUT_INTERVAL or greater than n - m.
    """
    features = np.hstack([unit_rows(view.astype(np.float32)) for view in views.values()])
    known = np.zeros(0, np.int64) if captioned is None else captioned
    free = np.setdiff1d(np.arange(len(features)), known)
    if not HELD_OUT_INTERVAL <= count <= len(free):
        raise UsageError(
            f"jointspace cannot choose {count} of {len(free)} photos without captions. Set the count to at least"
            f" {HELD_OUT_INTERVAL}, and to at most the number of photos without captions, or add photos."
        )
    tenth = count // HELD_OUT_INTERVAL
    dev, test, others = np.split(np.random.default_rng(seed).permutation(free), [tenth, 2 * tenth])
    others.sort()
    chosen = choose_representatives(features[others], count - 2 * tenth, seed, features[known])
    return ChosenPhotos(others[chosen], dev, test)


def choose_representatives(
    features: np.ndarray, count: int, seed: int = 0, known: np.ndarray | None = None
) -> np.ndarray:
    """Choose `count` rows of the `features` (n, D) that represent all rows. Return the row numbers (count,) in the
    order of the choice. `count` must be at most n.

    Let z be the projections of the centred features on the DIRECTIONS leading principal directions. The sum of
    max(0, max over i in S of z_i'z_j) over all rows j says how well the chosen rows S represent all rows. To maximise
    this sum is a facility location problem (Cornuejols, Fisher and Nemhauser 1977). The product z_i'z_j, in place of a
    cosine, prefers rows far from the mean. The greedy algorithm adds the row with the greatest gain in each step, and
    computes only the gains of rows that can be the best (Minoux 1978).

    If there are more than MAX_COMPARED rows, the rows are chosen from a random sample, which `seed` decides. The sample
    has MAX_COMPARED rows, or `count` rows if `count` is greater. `known` (m, D) are the features of further rows, which
    count as members of S from the start. If m is greater than MAX_COMPARED, only a random sample of MAX_COMPARED known
    rows is used.
    """
    rows = np.arange(len(features))
    if len(rows) > (most := max(MAX_COMPARED, count)):
        rows = np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))
    centred = features[rows] - features[rows].mean(axis=0)
    covariance = (centred.T @ centred).astype(np.float64) / len(centred)
    first = max(0, len(covariance) - DIRECTIONS)
    _, directions = scipy.linalg.eigh(covariance, subset_by_index=[first, len(covariance) - 1])
    z = centred @ directions.astype(np.float32)
    products = np.maximum(z @ z.T, 0)
    best = np.zeros(len(rows), np.float32)
    if known is not None and len(known):
        known = np.random.default_rng(seed).permutation(known)[:MAX_COMPARED] - features[rows].mean(axis=0)
        best = np.maximum(z @ (known @ directions.astype(np.float32)).T, 0).max(axis=1)
    bounds = [(-float(gain), row) for row, gain in enumerate(products.sum(axis=1))]
    heapq.heapify(bounds)
    chosen: list[int] = []
    while len(chosen) < count:
        _, row = heapq.heappop(bounds)
        gain = float(np.maximum(products[row] - best, 0).sum())
        if bounds and gain < -bounds[0][0]:
            heapq.heappush(bounds, (-gain, row))
            continue
        chosen.append(row)
        best = np.maximum(best, products[row])
    return rows[chosen]

"""Boxes (n, 4): x1, y1, x2, y2 in pixels of the upright image, x to the right, y down, x2 and y2 exclusive."""

from collections import Counter
from typing import NamedTuple

import numpy as np


class Candidates(NamedTuple):
    """Proposals in one image, before selection: `boxes` (n, 4) float32, `scores` (n,) float32."""

    boxes: np.ndarray
    scores: np.ndarray

    def take(self, rows: np.ndarray) -> "Candidates":
        return Candidates(self.boxes[rows], self.scores[rows])


NONE = Candidates(np.empty((0, 4), np.float32), np.empty(0, np.float32))


def tidy(given: Candidates, size: tuple[int, int], min_side: float) -> tuple[Candidates, Counter[str]]:
    """The usable candidates, clipped to an image of `size` (width, height), and counts of the faults.

    The counter says how many were `clipped`, and how many dropped because they are `not-finite`, in the `wrong-order`
    (x2 < x1 or y2 < y1), `outside` the image, or `too-small` (a side below `min_side` pixels).
    """
    boxes = np.asarray(given.boxes, np.float64).reshape(-1, 4)
    scores = np.asarray(given.scores, np.float32)
    finite = np.isfinite(boxes).all(axis=1) & np.isfinite(scores)
    boxes = np.where(finite[:, None], boxes, 0)
    ordered = (boxes[:, 2:] >= boxes[:, :2]).all(axis=1)
    inside = np.clip(boxes, 0, np.tile(size, 2))
    apart = ((boxes[:, 2:] <= 0) | (boxes[:, :2] >= size)).any(axis=1)
    sides = (inside[:, 2:] - inside[:, :2]).min(axis=1, initial=np.inf)
    faults = {
        "not-finite": ~finite,
        "wrong-order": ~ordered,
        "outside": apart,
        "too-small": (sides < min_side) | (sides <= 0),
    }
    kept, counts = np.ones(len(boxes), bool), Counter()
    for reason, bad in faults.items():
        counts[reason] = int((kept & bad).sum())
        kept &= ~bad
    counts["clipped"] = int((kept & (inside != boxes).any(axis=1)).sum())
    return Candidates(inside[kept].astype(np.float32), scores[kept]), +counts


def overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n, m) intersection over union of the boxes a (n, 4) and b (m, 4)."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    common = np.clip(high - low, 0, None).prod(axis=2)
    return common / np.maximum(areas(a)[:, None] + areas(b)[None] - common, np.finfo(np.float32).tiny)


def areas(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)


def suppress(candidates: Candidates, iou: float, limit: int) -> np.ndarray:
    """Greedy non-maximum suppression: the rows of at most `limit` candidates, best first (ties: the earlier row).

    None overlaps a better one by more than `iou`.
    """
    order = np.argsort(-candidates.scores, kind="stable")
    kept: list[int] = []
    while len(order) and len(kept) < limit:
        best, order = order[:1], order[1:]
        kept.append(best[0])
        order = order[overlaps(candidates.boxes[best], candidates.boxes[order])[0] <= iou]
    return np.array(kept, np.int64)


def group(image: np.ndarray, candidates: Candidates, count: int) -> list[Candidates]:
    """The candidates of each of `count` images; `image` (n,) int64 is the image of each row."""
    order = np.argsort(image, kind="stable")
    ends = np.searchsorted(image[order], np.arange(count + 1))
    return [candidates.take(order[ends[i] : ends[i + 1]]) for i in range(count)]

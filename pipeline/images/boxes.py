"""Boxes (n, 4) in images: proposes boxes, and selects regions among the proposals.

The columns of boxes are x1, y1, x2, y2 in pixels of the upright image, with x to the right and y down. x2 and y2 are
exclusive.
"""

import ctypes
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.errors import UsageError


class Candidates(NamedTuple):
    """Boxes in one image, `boxes` (n, 4) float32, with their `scores` (n,) float32.

    The boxes are the proposals before the selection of regions, or the regions after the selection.
    """

    boxes: np.ndarray
    scores: np.ndarray

    def take(self, rows: np.ndarray) -> "Candidates":
        return Candidates(self.boxes[rows], self.scores[rows])


NONE = Candidates(np.empty((0, 4), np.float32), np.empty(0, np.float32))


def tidy(candidates: Candidates, size: tuple[int, int], min_side: float) -> tuple[Candidates, Counter[str]]:
    """Return the usable candidates, clipped to an image of `size` (width, height), and counts of the faults.

    The counts say how many candidates were `clipped`, and how many were dropped because they are `not-finite`, in the
    `wrong-order` (x2 < x1 or y2 < y1), `outside` the image, or `too-small` (a side below `min_side` pixels).
    Each dropped candidate counts once, by the first of these faults.
    """
    boxes = np.asarray(candidates.boxes, np.float64).reshape(-1, 4)
    scores = np.asarray(candidates.scores, np.float32)
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
    kept = np.ones(len(boxes), bool)
    counts = Counter()
    for reason, bad in faults.items():
        counts[reason] = int((kept & bad).sum())
        kept &= ~bad
    counts["clipped"] = int((kept & (inside != boxes).any(axis=1)).sum())
    return Candidates(inside[kept].astype(np.float32), scores[kept]), +counts


def overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute the intersection over union (n, m) of the boxes a (n, 4) and b (m, 4)."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    common = np.clip(high - low, 0, None).prod(axis=2)
    return common / np.maximum(areas(a)[:, None] + areas(b)[None] - common, np.finfo(np.float32).tiny)


def areas(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)


def suppress(candidates: Candidates, iou: float, limit: int) -> np.ndarray:
    """Select at most `limit` candidates by greedy non-maximum suppression, and return their positions (k,) int64.

    The positions are in the order of falling scores. Among equal scores, the earlier position is first. No selected
    candidate overlaps a better selected candidate by an intersection over union of more than `iou`.
    """
    order = np.argsort(-candidates.scores, kind="stable")
    kept: list[int] = []
    while len(order) and len(kept) < limit:
        best = order[:1]
        order = order[1:]
        kept.append(best[0])
        order = order[overlaps(candidates.boxes[best], candidates.boxes[order])[0] <= iou]
    return np.array(kept, np.int64)


def group(image: np.ndarray, candidates: Candidates, count: int) -> list[Candidates]:
    """Split candidates by image, and return a list with one entry, which may be empty, for each of `count` images.

    `image` (n,) int64 has the number of the image of each candidate.
    """
    order = np.argsort(image, kind="stable")
    ends = np.searchsorted(image[order], np.arange(count + 1))
    return [candidates.take(order[ends[i] : ends[i + 1]]) for i in range(count)]


MIN_REGION_SCORE = 0.0
"""Smallest score of a proposal that can become a region. Proposals with smaller scores are dropped."""
MIN_REGION_SIDE = 4
"""Smallest side in pixels of a proposal that can become a region. Smaller proposals are dropped."""
MAX_SEARCH_WIDTH = 500
"""Width in pixels to which wider images are reduced before selective search."""
IMAGE_SCORE = 1.0
"""Score of the region that is the whole image."""
WINDOW_SCORE = 0.0
"""Score of a window of a grid."""
WINDOW_SCALES = (0.67, 0.5, 0.33)
"""Sizes of the windows of the proposals `grid`, as shares of the image's sides. Windows are also added if there are too
few proposals."""
WINDOW_ASPECTS = (1, 2, 0.5)
"""Ratios of width to height of the windows, relative to the ratio of the image."""
WINDOW_OVERLAP = 0.5
"""Smallest share of a side that two neighbouring windows of one size have in common."""


@dataclass(frozen=True)
class Selection:
    """The rule by which regions are selected: the best `count` proposals after non-maximum suppression at the
    intersection over union `iou`.

    Proposals whose score is below MIN_REGION_SCORE are dropped first. If fewer than `count` proposals are left and
    `fill` is true, windows of a grid are added up to `count` boxes. The whole image is always one more region, which
    `count` does not include.
    """

    iou: float
    count: int
    fill: bool


def propose_windows(size: tuple[int, int]) -> Candidates:
    """Return the windows of an image of `size` (width, height), with score 0.

    Windows of the same shape are together, the most central first. The shapes are in the order of WINDOW_SCALES, and
    for each scale in the order of WINDOW_ASPECTS.
    """
    grids = [window_grid(size, scale, aspect) for scale in WINDOW_SCALES for aspect in WINDOW_ASPECTS]
    boxes = np.concatenate(grids)
    return Candidates(boxes.astype(np.float32), np.full(len(boxes), WINDOW_SCORE, np.float32))


def window_grid(size: tuple[int, int], scale: float, aspect: float) -> np.ndarray:
    """Return windows (n, 4) of one size that cover an image of `size` (width, height), the most central first.

    `scale` is one of WINDOW_SCALES, and `aspect` is one of WINDOW_ASPECTS.
    """
    shape = np.minimum(np.multiply(size, scale) * (aspect**0.5, aspect**-0.5), size)
    steps = np.ceil((size - shape) / (shape * (1 - WINDOW_OVERLAP)) - 1e-9).astype(int)
    positions = [np.linspace(0, room, count + 1) for room, count in zip(size - shape, steps, strict=True)]
    corners = np.stack(np.meshgrid(*positions), axis=-1).reshape(-1, 2)
    from_middle = (((corners + shape / 2) / size - 0.5) ** 2).sum(axis=1)
    corners = corners[np.argsort(from_middle.round(9), kind="stable")]
    return np.hstack([corners, corners + shape])


def search_selectively(pixels: np.ndarray) -> Candidates:
    """Propose boxes by OpenCV's selective search (Uijlings et al. 2013) in an image (height, width, 3) uint8.

    Scores fall evenly from 1 by rank. Raises UsageError if OpenCV's contributed modules are not installed.
    """
    try:
        import cv2

        engine = cv2.ximgproc.segmentation.createSelectiveSearchSegmentation()
    except (ImportError, AttributeError) as error:
        raise UsageError(
            "regions.proposals selective-search needs OpenCV's contributed modules. Install them with"
            " `pip install 'jointspace[selective-search]'`, or choose other proposals."
        ) from error
    # One thread is enough, because images are processed in parallel.
    cv2.setNumThreads(1)
    height, width = pixels.shape[:2]
    scale = min(1.0, MAX_SEARCH_WIDTH / width)
    if scale < 1:
        size = (MAX_SEARCH_WIDTH, max(1, round(height * scale)))
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    engine.setBaseImage(np.ascontiguousarray(pixels[:, :, ::-1]))
    engine.switchToSelectiveSearchFast()
    # OpenCV ranks boxes with rand() of the C library. With a fixed seed, an image gets the same order in every process.
    if srand := getattr(ctypes.CDLL(None), "srand", None):
        srand(0)
    corners = np.asarray(engine.process(), np.float32).reshape(-1, 4)
    boxes = np.hstack([corners[:, :2], corners[:, :2] + corners[:, 2:]]) / np.float32(scale)
    return Candidates(boxes, np.linspace(1, 0, len(boxes), endpoint=False, dtype=np.float32))


def select(candidates: Candidates, size: tuple[int, int], selection: Selection) -> tuple[Candidates, Counter[str]]:
    """Select the regions of an image of `size` (width, height) among the proposals `candidates`.

    Return the regions, and the numbers of proposals that were clipped or dropped (by reason), and of windows that were
    added (`filled`). Row 0 is the whole image, with score 1. The selected proposals follow by falling score, and then
    the added windows, which overlap neither the proposals nor each other by more than `selection.iou`.
    """
    chosen, counts = tidy(candidates, size, MIN_REGION_SIDE)
    counts["low-score"] = int((chosen.scores < MIN_REGION_SCORE).sum())
    chosen = chosen.take(chosen.scores >= MIN_REGION_SCORE)
    chosen = chosen.take(suppress(chosen, selection.iou, selection.count))
    boxes = [np.array([[0, 0, *size]], np.float32), chosen.boxes]
    if selection.fill and len(chosen.boxes) < selection.count:
        windows = propose_windows(size)
        sides = (windows.boxes[:, 2:] - windows.boxes[:, :2]).min(axis=1)
        apart = (overlaps(windows.boxes, chosen.boxes) <= selection.iou).all(axis=1)
        windows = windows.take(apart & (sides >= MIN_REGION_SIDE))
        boxes.append(windows.boxes[suppress(windows, selection.iou, selection.count - len(chosen.boxes))])
    scores = np.full(sum(map(len, boxes)), WINDOW_SCORE, np.float32)
    scores[0] = IMAGE_SCORE
    scores[1 : 1 + len(chosen.scores)] = chosen.scores
    counts["filled"] = len(scores) - 1 - len(chosen.scores)
    return Candidates(np.concatenate(boxes), scores), +counts

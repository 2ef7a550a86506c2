"""Proposals in an image, and the selection of regions among them."""

import ctypes
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipeline.errors import UsageError
from pipeline.images.boxes import Candidates, overlaps, suppress, tidy

Propose = Callable[[np.ndarray, Candidates], Candidates]
"""(pixels (height, width, 3) uint8, known boxes) -> proposals."""
WHOLE_SCORE = 1.0
WINDOW_SCORE = 0.0
LEAST_SCORE = 0.0
"""Of a proposal that may become a region."""
LEAST_SIDE = 4
"""Pixels of its shorter side."""
SEARCH_WIDTH = 500
"""Pixels; wider images are made narrower before selective search."""


@dataclass(frozen=True)
class WindowGrid:
    """Windows at several `scales` (of the image's sides) and `aspects` (width over height, times the image's own);
    neighbours share `overlap` of their sides."""

    scales: tuple[float, ...]
    aspects: tuple[float, ...]
    overlap: float = 0.5


GRID = WindowGrid((0.67, 0.5, 0.33), (1, 2, 0.5))
"""The windows of proposals `grid`, and those that make up the number of regions."""


@dataclass(frozen=True)
class Selection:
    """Which proposals become regions: the best `count` with at least `min_score` and `min_side` pixels, after
    non-maximum suppression at `iou`. If there are fewer and `fill` is set, windows of `grid` make up the number."""

    min_score: float
    min_side: float
    iou: float
    count: int
    fill: bool
    grid: WindowGrid


def grid_windows(size: tuple[int, int], grid: WindowGrid) -> np.ndarray:
    """(n, 4) float32 windows in an image of `size`: by scale as given, the most central first."""
    windows = [_windows(size, scale, aspect, grid.overlap) for scale in grid.scales for aspect in grid.aspects]
    return np.concatenate([np.empty((0, 4)), *windows]).astype(np.float32)


def _windows(size: tuple[int, int], scale: float, aspect: float, overlap: float) -> np.ndarray:
    shape = np.minimum(np.multiply(size, scale) * (aspect**0.5, aspect**-0.5), size)
    steps = np.ceil((size - shape) / (shape * (1 - overlap)) - 1e-9).astype(int)
    places = [np.linspace(0, room, count + 1) for room, count in zip(size - shape, steps, strict=True)]
    corners = np.stack(np.meshgrid(*places), axis=-1).reshape(-1, 2)
    from_middle = (((corners + shape / 2) / size - 0.5) ** 2).sum(axis=1)
    corners = corners[np.argsort(from_middle.round(9), kind="stable")]
    return np.hstack([corners, corners + shape])


def propose_windows(grid: WindowGrid, pixels: np.ndarray, known: Candidates) -> Candidates:
    """The windows of `grid`, with score 0, in the order of `grid_windows`."""
    boxes = grid_windows((pixels.shape[1], pixels.shape[0]), grid)
    return Candidates(boxes, np.full(len(boxes), WINDOW_SCORE, np.float32))


def keep_known(pixels: np.ndarray, known: Candidates) -> Candidates:
    """The boxes from a file or a detector."""
    return known


def search_selectively(pixels: np.ndarray, known: Candidates) -> Candidates:
    """Selective search (Uijlings et al. 2013; [32] in Niu et al. 2017) by OpenCV; scores fall evenly from 1 by rank.

    Raises UsageError if OpenCV's contributed modules are not installed.
    """
    segmentation = _import_ximgproc()
    height, width = pixels.shape[:2]
    scale = min(1.0, SEARCH_WIDTH / width)
    if scale < 1:
        import cv2

        size = (SEARCH_WIDTH, max(1, round(height * scale)))
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    engine = segmentation.createSelectiveSearchSegmentation()
    engine.setBaseImage(np.ascontiguousarray(pixels[:, :, ::-1]))
    engine.switchToSelectiveSearchFast()
    # OpenCV ranks with the C library's rand(); an image must get the same order in every process.
    if srand := getattr(ctypes.CDLL(None), "srand", None):
        srand(0)
    found = np.asarray(engine.process(), np.float32).reshape(-1, 4)
    boxes = np.hstack([found[:, :2], found[:, :2] + found[:, 2:]]) / np.float32(scale)
    return Candidates(boxes, np.linspace(1, 0, len(boxes), endpoint=False, dtype=np.float32))


def _import_ximgproc():
    try:
        import cv2

        segmentation = cv2.ximgproc.segmentation
    except (ImportError, AttributeError) as error:
        raise UsageError(
            "selective-search needs OpenCV's contributed modules: pip install 'jointspace[selective-search]', or choose"
            " another of regions.proposals"
        ) from error
    cv2.setNumThreads(1)  # the processes share the cores already
    return segmentation


METHODS: Mapping[str, Callable[[WindowGrid], Propose]] = {
    "selective-search": lambda grid: search_selectively,
    "faster-rcnn": lambda grid: keep_known,
    "grid": lambda grid: partial(propose_windows, grid),
    "boxes": lambda grid: keep_known,
}
"""Sources of proposals. A detector, which runs on many images and a GPU, has run before: see detectors.py."""


def proposer(method: str, grid: WindowGrid) -> Propose:
    """The function of `method`, which can be pickled. Raises UsageError listing the known methods."""
    if method not in METHODS:
        raise UsageError(f"unknown proposals {method}; there are {', '.join(METHODS)}")
    if method == "selective-search":
        _import_ximgproc()  # a missing package fails here, once, not in another process for every image
    return METHODS[method](grid)


def select(given: Candidates, size: tuple[int, int], selection: Selection) -> tuple[Candidates, Counter[str]]:
    """The regions of an image of `size` (width, height), and counts of proposals clipped, dropped (and why) and filled.

    Row 0 is the whole image, with score 1; the others follow by falling score, then the windows that fill up.
    """
    chosen, counts = tidy(given, size, selection.min_side)
    counts["low-score"] = int((chosen.scores < selection.min_score).sum())
    chosen = chosen.take(chosen.scores >= selection.min_score)
    chosen = chosen.take(suppress(chosen, selection.iou, selection.count))
    boxes = [np.array([[0, 0, *size]], np.float32), chosen.boxes]
    if selection.fill and len(chosen.boxes) < selection.count:
        boxes.append(_fill(chosen.boxes, size, selection))
    scores = np.full(sum(map(len, boxes)), WINDOW_SCORE, np.float32)
    scores[0] = WHOLE_SCORE
    scores[1 : 1 + len(chosen.scores)] = chosen.scores
    counts["filled"] = len(scores) - 1 - len(chosen.scores)
    return Candidates(np.concatenate(boxes), scores), +counts


def _fill(boxes: np.ndarray, size: tuple[int, int], selection: Selection) -> np.ndarray:
    """Windows that overlap neither `boxes` nor each other by more than `selection.iou`."""
    windows = grid_windows(size, selection.grid)
    sides = (windows[:, 2:] - windows[:, :2]).min(axis=1, initial=np.inf)
    free = (overlaps(windows, boxes) <= selection.iou).all(axis=1) & (sides >= selection.min_side)
    windows = windows[free]
    order = Candidates(windows, np.zeros(len(windows), np.float32))
    return windows[suppress(order, selection.iou, selection.count - len(boxes))]

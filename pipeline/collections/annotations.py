"""Sentences, documents and boxes: each is left out with its image, or for a fault of its own."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

IMAGE_REJECTED = "image rejected"
IMAGE_DUPLICATE = "duplicate image"
FLOAT32_MAX = np.finfo(np.float32).max


@dataclass(frozen=True)
class Images:
    """All given images, by row: `ids` (n,) in the manifest, `sizes` (n, 2) width and height of kept images, and `fates`
    (n,): None for a kept image, else the reason to leave out what belongs to it."""

    ids: np.ndarray
    sizes: np.ndarray
    fates: np.ndarray


@dataclass(frozen=True)
class Belongings:
    """The `kept` rows in the manifest's form, and for each given row the reason to leave it out, or None."""

    kept: pa.Table
    reasons: np.ndarray


def sentences(given: pa.Table, images: Images) -> Belongings:
    """Ordered by image and number; of two sentences with the same number, the first."""
    owners, numbers = given["owner"].to_numpy(), given["number"].to_numpy()
    reasons = images.fates[owners]
    order = np.lexsort((numbers, owners))
    repeated = _repeats_previous(owners[order]) & _repeats_previous(numbers[order])
    _leave_out(reasons, order[repeated], "repeated: this image has another sentence of this number")
    rows = order[are_none(reasons[order])]
    kept = {"sentence_id": np.arange(len(rows)), "image_id": images.ids[owners[rows]]}
    return Belongings(pa.table({**kept, "text": _take(given["text"], rows)}), reasons)


def documents(given: pa.Table, images: Images) -> Belongings:
    """Ordered by image; of two documents of one image, the first."""
    owners = given["owner"].to_numpy()
    reasons = images.fates[owners]
    order = np.argsort(owners, kind="stable")
    repeated = _repeats_previous(owners[order])
    _leave_out(reasons, order[repeated], "repeated: this image has another document")
    rows = order[are_none(reasons[order])]
    kept = {name: _take(given[name], rows) for name in ("title", "tags", "description")}
    return Belongings(pa.table({"image_id": images.ids[owners[rows]], **kept}), reasons)


def boxes(given: pa.Table, images: Images) -> Belongings:
    """Ordered by image, then as given; clipped to the image."""
    owners = given["owner"].to_numpy()
    reasons = images.fates[owners]
    corners = np.stack([given[name].to_numpy() for name in ("x1", "y1", "x2", "y2")], axis=1)
    scores = given["score"].to_numpy()
    _leave_out(reasons, ~(np.isfinite(corners).all(axis=1) & (abs(scores) <= FLOAT32_MAX)), "not finite")
    _leave_out(reasons, ~_have_area(corners), "no area: x2 and y2 must exceed x1 and y1")
    corners = np.clip(corners, 0, np.tile(images.sizes[owners], 2)).astype(np.float32)
    _leave_out(reasons, ~_have_area(corners), "outside of the image")
    order = np.argsort(owners, kind="stable")
    rows = order[are_none(reasons[order])]
    kept = {name: corners[rows, place] for place, name in enumerate(("x1", "y1", "x2", "y2"))}
    kept |= {"score": scores[rows].astype(np.float32), "label": _take(given["label"], rows)}
    return Belongings(pa.table({"image_id": images.ids[owners[rows]], **kept}), reasons)


def are_none(reasons: np.ndarray) -> np.ndarray:
    """A mask of the None in an array of objects."""
    return reasons == None  # noqa: E711 (of each element)


def _take(column: pa.ChunkedArray, rows: np.ndarray) -> pa.ChunkedArray:
    # A clean collection keeps every row in place; copying the sentences of a million images would take a gigabyte.
    everything = len(rows) == len(column) and bool((np.diff(rows) == 1).all())
    return column if everything else column.take(rows)


def _leave_out(reasons: np.ndarray, rows: np.ndarray, reason: str) -> None:
    """Give `rows` (numbers or a mask) this reason, unless they already have one."""
    chosen = np.zeros(len(reasons), bool)
    chosen[rows] = True
    reasons[chosen & are_none(reasons)] = reason


def _repeats_previous(values: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(min(len(values), 1), bool), values[1:] == values[:-1]])


def _have_area(corners: np.ndarray) -> np.ndarray:
    return (corners[:, 2] > corners[:, 0]) & (corners[:, 3] > corners[:, 1])

"""Sentences, documents and boxes: each is left out with its image, or for a fault of its own.

They come with their images, some thousand at a time, ordered by image (`owner`); sentences then by number, and all as
they were given.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

IMAGE_REJECTED = "image rejected"
IMAGE_DUPLICATE = "duplicate image"
FLOAT32_MAX = np.finfo(np.float32).max


@dataclass(frozen=True)
class Images:
    """Some given images: their numbers as `owners` (n,), ascending, `ids` (n,) in the manifest, `sizes` (n, 2) width
    and height of kept images, and `fates` (n,): None for a kept image, else the reason to leave out what belongs to
    it."""

    owners: np.ndarray
    ids: np.ndarray
    sizes: np.ndarray
    fates: np.ndarray

    def rows_of(self, given: pa.Table) -> np.ndarray:
        """The row here of each given row's owner."""
        return np.searchsorted(self.owners, given["owner"].to_numpy())


@dataclass(frozen=True)
class Belongings:
    """The `kept` rows in the manifest's form, and for each given row the reason to leave it out, or None."""

    kept: pa.Table
    reasons: np.ndarray


def sentences(given: pa.Table, images: Images) -> Belongings:
    """Of two sentences of an image with the same number, the first; without their `sentence_id`."""
    rows = images.rows_of(given)
    reasons = images.fates[rows]
    repeated = _repeats_previous(rows) & _repeats_previous(given["number"].to_numpy())
    _leave_out(reasons, repeated, "repeated: this image has another sentence of this number")
    return _settle(given, ["text"], images.ids[rows], reasons)


def documents(given: pa.Table, images: Images) -> Belongings:
    """Of two documents of one image, the first."""
    rows = images.rows_of(given)
    reasons = images.fates[rows]
    _leave_out(reasons, _repeats_previous(rows), "repeated: this image has another document")
    return _settle(given, ["title", "tags", "description"], images.ids[rows], reasons)


def boxes(given: pa.Table, images: Images) -> Belongings:
    """Clipped to the image."""
    rows = images.rows_of(given)
    reasons = images.fates[rows]
    corners = np.stack([given[name].to_numpy() for name in ("x1", "y1", "x2", "y2")], axis=1)
    scores = given["score"].to_numpy()
    _leave_out(reasons, ~(np.isfinite(corners).all(axis=1) & (abs(scores) <= FLOAT32_MAX)), "not finite")
    _leave_out(reasons, ~_have_area(corners), "no area: x2 and y2 must exceed x1 and y1")
    corners = np.clip(corners, 0, np.tile(images.sizes[rows], 2)).astype(np.float32)
    _leave_out(reasons, ~_have_area(corners), "outside of the image")
    scores = np.where(are_none(reasons), scores, 0).astype(np.float32)  # others may be too large for it
    clipped = {name: corners[:, place] for place, name in enumerate(("x1", "y1", "x2", "y2"))}
    kept = pa.table({**clipped, "score": scores, "label": given["label"]})
    return _settle(kept, kept.column_names, images.ids[rows], reasons)


def are_none(reasons: np.ndarray) -> np.ndarray:
    """A mask of the None in an array of objects."""
    return reasons == None  # noqa: E711 (of each element)


def _settle(given: pa.Table, names: list[str], image_id: np.ndarray, reasons: np.ndarray) -> Belongings:
    kept = pa.table({"image_id": image_id, **{name: given[name] for name in names}})
    return Belongings(kept.filter(pa.array(are_none(reasons))), reasons)


def _leave_out(reasons: np.ndarray, chosen: np.ndarray, reason: str) -> None:
    """Give the `chosen` (n,) this reason, unless they already have one."""
    reasons[chosen & are_none(reasons)] = reason


def _repeats_previous(values: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(min(len(values), 1), bool), values[1:] == values[:-1]])


def _have_area(corners: np.ndarray) -> np.ndarray:
    return (corners[:, 2] > corners[:, 0]) & (corners[:, 3] > corners[:, 1])

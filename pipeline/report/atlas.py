"""A map of the images: where they lie on the two main axes of their embeddings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.index.vectors import evenly_spaced
from pipeline.report.examples import ReportPicture, SplitGallery

PLACES = 64
"""Photographs shown; the others are dots."""
DOTS = 600
"""Images that are shown as dots."""


@dataclass(frozen=True)
class AtlasPoint:
    """A photograph on the map; x and y in percent from the left and from the top."""

    what: ReportPicture
    x: float
    y: float


@dataclass(frozen=True)
class Atlas:
    """Photographs and dots (x, y), in percent, and the share of the variance (percent) that the two axes show."""

    places: Sequence[AtlasPoint]
    dots: Sequence[tuple[float, float]]
    shown: float


def draw_map(gallery: SplitGallery, picture: Callable[[Mapping[str, Any]], ReportPicture]) -> Atlas | None:
    """The images of `gallery` by principal components; None where there are fewer than three."""
    x = gallery.image_vectors
    if len(x) < 3:
        return None
    centred = x - x.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    if values[-1] <= 0:
        return None
    flat = centred @ vectors[:, :-3:-1]
    # Ranks rather than values: a map of what lies beside what, without a heap in the middle.
    spread = np.argsort(np.argsort(flat, axis=0), axis=0) / (len(flat) - 1)
    percent = np.round(100 * spread, 1).tolist()
    rows = evenly_spaced(len(flat), PLACES)
    pictures = map(picture, gallery.images.take(rows).to_pylist())
    places = [AtlasPoint(what, *percent[row]) for what, row in zip(pictures, rows, strict=True)]
    dots = [tuple(percent[row]) for row in evenly_spaced(len(flat), DOTS)]
    return Atlas(places, dots, float(100 * values[-2:].sum() / values.sum()))

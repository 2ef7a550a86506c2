"""Matching rows of imported features to images, by name."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from posixpath import basename, splitext

import numpy as np

from pipeline.errors import InputError


@dataclass(frozen=True)
class Matching:
    """`rows` (n_images,) int64: the row of each image, or -1; `unmatched`: names that match no image."""

    rows: np.ndarray
    unmatched: list[str]

    def missing(self, images: Sequence[str]) -> list[str]:
        """Those of `images` without a row."""
        return [images[i] for i in np.flatnonzero(self.rows < 0)]


def match_names(names: Sequence[str], images: Sequence[str]) -> Matching:
    """Match the rows' `names` to the paths `images`: by the full name, or by a file name that is unique in both; one
    without a suffix is taken for the key of a webdataset's sample.

    Raises InputError naming an image with several rows.
    """
    rows = np.full(len(images), -1, np.int64)
    place = {image: i for i, image in enumerate(images)}
    by_file, by_stem, unique = _unique(images, basename), _unique(images, _stem), _unique(names, basename)
    unmatched = []
    for row, name in enumerate(names):
        image = place.get(name)
        if image is None and (file := basename(name)) in unique:
            image = (by_file if splitext(file)[1] else by_stem).get(file)
        if image is None:
            unmatched.append(name)
        elif rows[image] >= 0:
            raise InputError(f"rows {rows[image]} and {row} are both of {images[image]}; remove one of them")
        else:
            rows[image] = row
    return Matching(rows, unmatched)


def _stem(name: str) -> str:
    return splitext(basename(name))[0]


def _unique(names: Sequence[str], short: Callable[[str], str]) -> dict[str, int]:
    """What `short` makes of a name -> position, for what it makes of one of `names` only."""
    shortened = [short(name) for name in names]
    counts = Counter(shortened)
    return {name: position for position, name in enumerate(shortened) if counts[name] == 1}


def some(names: Sequence[str], count: int = 3) -> str:
    """The first `count` of `names`, and how many more there are."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more

"""Matching rows of imported features to images, by name."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from posixpath import basename

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
    """Match the rows' `names` to the paths `images`: by the full name, or by a file name that is unique in both.

    Raises InputError naming an image with several rows.
    """
    rows = np.full(len(images), -1, np.int64)
    place = {image: i for i, image in enumerate(images)}
    by_file, unique = _by_unique_file(images), _by_unique_file(names)
    unmatched = []
    for row, name in enumerate(names):
        image = place.get(name)
        if image is None and basename(name) in unique:
            image = by_file.get(basename(name))
        if image is None:
            unmatched.append(name)
        elif rows[image] >= 0:
            raise InputError(f"rows {rows[image]} and {row} are both of {images[image]}; remove one of them")
        else:
            rows[image] = row
    return Matching(rows, unmatched)


def _by_unique_file(names: Sequence[str]) -> dict[str, int]:
    """File name -> position, for file names that occur once in `names`."""
    files = [basename(name) for name in names]
    counts = Counter(files)
    return {file: position for position, file in enumerate(files) if counts[file] == 1}


def some(names: Sequence[str], count: int = 3) -> str:
    """The first `count` of `names`, and how many more there are."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more

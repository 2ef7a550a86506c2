"""Which row of features made elsewhere belongs to which image, by name."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from posixpath import basename

import numpy as np

from pipeline.errors import InputError


@dataclass(frozen=True)
class Matching:
    """`rows` (n_images,) int64: the row of each image, -1 where there is none; `unmatched`: names of no image."""

    rows: np.ndarray
    unmatched: list[str]

    def missing(self, images: Sequence[str]) -> list[str]:
        """Those of `images` that have no row."""
        return [images[i] for i in np.flatnonzero(self.rows < 0)]


def match_names(names: Sequence[str], images: Sequence[str]) -> Matching:
    """Match the rows' `names` with the paths `images`: by the whole name, else by a file name that is unique in both.

    Raises InputError naming an image that has several rows.
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
    """File name -> position, of those file names that only one of `names` has."""
    files = [basename(name) for name in names]
    counts = Counter(files)
    return {file: position for position, file in enumerate(files) if counts[file] == 1}


def some(names: Sequence[str], count: int = 3) -> str:
    """The first few of `names`, and how many there are."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more

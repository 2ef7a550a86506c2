"""Matching rows made elsewhere to images and to their sentences, by name."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from posixpath import basename, splitext

import numpy as np

from pipeline.errors import InputError

MOST_DIGITS = 10
"""A longer number is of no sentence."""


@dataclass(frozen=True)
class Matching:
    """`rows` (n,) int64: the row of each image or sentence, or -1; `unmatched`: names that match none; `repeats`: pairs
    of rows of the same text."""

    rows: np.ndarray
    unmatched: list[str]
    repeats: Sequence[tuple[int, int]] = ()

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those of the `names` (n,) without a row."""
        return [names[i] for i in np.flatnonzero(self.rows < 0)]


def match_names(names: Sequence[str], images: Sequence[str]) -> Matching:
    """Match the rows' `names` to the paths `images`: by the full name, or by a file name that is unique in both; one
    without a suffix is taken for the key of a webdataset's sample.

    Raises InputError naming an image with several rows.
    """
    rows = np.full(len(images), -1, np.int64)
    unmatched = []
    for row, (name, image) in enumerate(zip(names, _find(names, images), strict=True)):
        if image is None:
            unmatched.append(name)
        else:
            _put(rows, image, row, images)
    return Matching(rows, unmatched)


def match_sentences(
    names: Sequence[str], images: Sequence[str], owners: np.ndarray, texts: Sequence[str], labels: Sequence[str]
) -> Matching:
    """Match the rows' `names` to the sentences `texts`, whose images are `images[owners]`, `owners` (n,) ascending: by
    the sentence's own words, which may be those of several, or by IMAGE#k, where k counts an image's sentences from 0
    and IMAGE is as in `match_names`. Rows of the same words are `repeats`. `labels` name the sentences in errors.

    Raises InputError naming a sentence with several rows, or a number that its image does not have.
    """
    rows = np.full(len(texts), -1, np.int64)
    first = np.searchsorted(owners, np.arange(len(images) + 1)).tolist()
    by_text: dict[str, list[int]] = {}
    for i, text in enumerate(texts):
        by_text.setdefault(_words(text), []).append(i)
    heads = list(dict.fromkeys(name.rpartition("#")[0] for name in names))
    owner = dict(zip(heads, _find(heads, images), strict=True))
    unmatched, repeats, first_rows = [], [], {}
    for row, name in enumerate(names):
        head, _, number = name.rpartition("#")
        image = owner[head] if number.isascii() and number.isdecimal() and len(number) < MOST_DIGITS else None
        if same := by_text.get(words := _words(name)):
            if (before := first_rows.setdefault(words, row)) != row:
                repeats.append((before, row))
                continue
            for i in same:
                _put(rows, i, row, labels)
        elif image is None:
            unmatched.append(name)
        elif int(number) >= (count := first[image + 1] - first[image]):
            raise InputError(
                f"there is no sentence {name}: in this run {images[image]} has {count}, counted from 0; name the rows"
                " by the sentences' words instead"
            )
        else:
            _put(rows, first[image] + int(number), row, labels)
    return Matching(rows, unmatched, repeats)


def _find(names: Sequence[str], images: Sequence[str]) -> list[int | None]:
    """The place of each of `names` among `images`."""
    place = {image: i for i, image in enumerate(images)}
    by_file, by_stem, unique = _unique(images, basename), _unique(images, _stem), _unique(names, basename)
    found = []
    for name in names:
        image = place.get(name)
        if image is None and (file := basename(name)) in unique:
            image = (by_file if splitext(file)[1] else by_stem).get(file)
        found.append(image)
    return found


def _put(rows: np.ndarray, place: int, row: int, labels: Sequence[str]) -> None:
    if rows[place] >= 0:
        raise InputError(f"rows {rows[place]} and {row} are both of {labels[place]}; remove one of them")
    rows[place] = row


def _words(text: str) -> str:
    return " ".join(text.split())


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

"""Matching rows made elsewhere to images and to their sentences, by name."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import basename, splitext

import numpy as np

from pipeline.errors import InputError
from pipeline.foreign.image_names import CASE, Readings, Spelling, describe

MOST_DIGITS = 10
"""A longer number is of no sentence."""


@dataclass(frozen=True)
class Lookup:
    """`places` of names among images, None for a name of none; how many were found by which of READINGS, and between
    which images a name leaves the choice."""

    places: list[int | None]
    readings: Counter[int] = field(default_factory=Counter)
    ambiguous: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Matching:
    """`rows` (n,) int64: the row of each image or sentence, or -1; `unmatched`: names that match none; `repeats`: pairs
    of rows of the same name or text; `lookup`: how the names were found."""

    rows: np.ndarray
    unmatched: list[str]
    lookup: Lookup
    repeats: Sequence[tuple[int, int]] = ()

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those of the `names` (n,) without a row."""
        return [names[i] for i in np.flatnonzero(self.rows < 0)]

    def describe(self) -> list[str]:
        """What to say of names that did not match exactly, or not at all for there being several images."""
        count = len(self.lookup.places)
        lines = [describe(reading, n, count, "names") for reading, n in sorted(self.lookup.readings.items())]
        return lines + [f"{name!r} may be {' or '.join(of)}" for name, of in self.lookup.ambiguous.items()]


def match_names(names: Sequence[str], images: Sequence[str], root: Path | str | None = None) -> Matching:
    """Match the rows' `names` to the paths `images` below the folder `root`, as `find_names` does. Rows of one name are
    `repeats`.

    Raises InputError naming an image with rows of several names.
    """
    rows = np.full(len(images), -1, np.int64)
    unmatched, repeats, lookup = [], [], find_names(names, images, root)
    for row, (name, image) in enumerate(zip(names, lookup.places, strict=True)):
        if image is None:
            unmatched.append(name)
        elif (before := rows[image]) >= 0 and names[before] == name:
            repeats.append((int(before), row))
        else:
            _put(rows, image, row, names, images)
    return Matching(rows, unmatched, lookup, repeats)


def match_sentences(
    names: Sequence[str], images: Sequence[str], owners: np.ndarray, texts: Sequence[str], labels: Sequence[str],
    root: Path | str | None = None,
) -> Matching:  # fmt: skip
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
    lookup = find_names(heads, images, root)
    owner = dict(zip(heads, lookup.places, strict=True))
    unmatched, repeats, first_rows = [], [], {}
    for row, name in enumerate(names):
        head, _, number = name.rpartition("#")
        image = owner[head] if number.isascii() and number.isdecimal() and len(number) < MOST_DIGITS else None
        if same := by_text.get(words := _words(name)):
            if (before := first_rows.setdefault(words, row)) != row:
                repeats.append((before, row))
                continue
            for i in same:
                _put(rows, i, row, names, labels)
        elif image is None:
            unmatched.append(name)
        elif int(number) >= (count := first[image + 1] - first[image]):
            raise InputError(
                f"there is no sentence {name}: in this run {images[image]} has {count}, counted from 0; name the rows"
                " by the sentences' words instead"
            )
        else:
            _put(rows, first[image] + int(number), row, names, labels)
    return Matching(rows, unmatched, lookup, repeats)


def find_names(names: Sequence[str], images: Sequence[str], root: Path | str | None = None) -> Lookup:
    """The place of each of `names` among the paths `images` below the folder `root`: by name and then by a file name
    that is unique in both, first exactly and then as READINGS allow; a name without a suffix is taken for the key of a
    webdataset's sample. An image that has been found does not answer to another case of its name."""
    readings = Readings(root)
    matched = _find_exactly(names, images)
    taken = set(matched.values())
    counts: Counter[int] = Counter()
    ambiguous: dict[str, list[str]] = {}
    distinct = list(dict.fromkeys(names))
    for short, shorten in ((str, str), (_file, basename), (_key, _stem)):
        unique = {file: distinct[at] for file, at in _unique(distinct, short).items()}
        wanted = {file: name for file, name in unique.items() if file and name not in matched}
        if not wanted:
            continue
        shortened = [Spelling(shorten(image), at) for at, image in enumerate(images)]
        matches = list(readings.match(wanted, lambda shortened=shortened: shortened))
        for file, match in sorted(matches, key=lambda pair: pair[1].reading):
            name, (image, *others) = wanted[file], match.targets
            if others:
                ambiguous[name] = [images[image], images[others[0]]]
            elif match.reading < CASE or image not in taken:
                matched[name] = image
                counts[match.reading] += 1
        taken.update(matched.values())
    return Lookup([matched.get(name) for name in names], counts, ambiguous)


def _find_exactly(names: Sequence[str], images: Sequence[str]) -> dict[str, int]:
    """Those of the `names` that are an image's, or whose file name only they and one image have, with its place."""
    place = {image: i for i, image in enumerate(images)}
    by_file, by_stem = _unique(images, basename), _unique(images, _stem)
    unique = _unique(dict.fromkeys(names), basename)
    matched = {}
    for name in names:
        image = place.get(name)
        if image is None and (file := basename(name)) in unique:
            image = (by_file if splitext(file)[1] else by_stem).get(file)
        if image is not None:
            matched[name] = image
    return matched


def _put(rows: np.ndarray, place: int, row: int, names: Sequence[str], labels: Sequence[str]) -> None:
    if (other := rows[place]) >= 0:
        spelt = "" if names[row] == names[other] else f" ({names[other]!r} and {names[row]!r})"
        raise InputError(f"rows {other} and {row} are both of {labels[place]}{spelt}; remove one of them")
    rows[place] = row


def _words(text: str) -> str:
    return unicodedata.normalize("NFC", " ".join(text.split()))


def _file(name: str) -> str:
    """The file name in a path of any system, if it has a suffix."""
    file = basename(name.replace("\\", "/"))
    return file if splitext(file)[1] else ""


def _key(name: str) -> str:
    """The same if it has none."""
    return "" if _file(name) else basename(name.replace("\\", "/"))


def _stem(name: str) -> str:
    return splitext(basename(name))[0]


def _unique(names: Iterable[str], short: Callable[[str], str]) -> dict[str, int]:
    """What `short` makes of a name -> the name's position, for what it makes of one of `names` only."""
    shortened = [short(name) for name in names]
    counts = Counter(shortened)
    return {name: position for position, name in enumerate(shortened) if counts[name] == 1}


def some(names: Sequence[str], count: int = 3) -> str:
    """The first `count` of `names`, and how many more there are."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more

"""Matches the rows of precomputed vectors and of boxes to images and sentences, by name."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import basename, splitext

import numpy as np

from pipeline.errors import InputError
from pipeline.foreign.image_names import NameMatcher, Reading, Spelling, describe_reading

MAX_NUMBER_DIGITS = 9
"""Largest number of digits in the number of a sentence. A name IMAGE#k with more digits is not read as the name of a
sentence."""


@dataclass(frozen=True)
class Lookup:
    """The images to which names refer.

    `images` has the position of the image for each name, or None if the name matches none. `readings` counts the names
    that were not found by an exact comparison, by the reading in which they matched. `ambiguous` has the names that
    match several images, with the paths of two of these images.
    """

    images: list[int | None]
    readings: Counter[int] = field(default_factory=Counter)
    ambiguous: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Matching:
    """The row of each of n images or sentences.

    `rows` (n,) int64 has the row of each image or sentence, or -1 if it has no row. `unmatched` are the names of rows
    that match nothing. `repeats` are pairs of rows with the same name or text, the first such row and a later one.
    `lookup` describes how the names were found.
    """

    rows: np.ndarray
    unmatched: list[str]
    lookup: Lookup
    repeats: Sequence[tuple[int, int]] = ()

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the `names` (n,) of images or sentences without a row."""
        return [names[position] for position in np.flatnonzero(self.rows < 0).tolist()]

    def format_summary(self) -> list[str]:
        """Return lines for the user about names that did not match exactly, and about names that match several
        images."""
        count = len(self.lookup.images)
        lines = [describe_reading(reading, n, count, "names") for reading, n in sorted(self.lookup.readings.items())]
        return lines + [f"{name!r} may be {' or '.join(of)}" for name, of in self.lookup.ambiguous.items()]


def match_names(names: Sequence[str], images: Sequence[str], root: Path | str | None = None) -> Matching:
    """Match the names of rows to the image paths `images` below the folder `root`, by the rules of `find_names`.

    Of several rows with the same name, the first is matched, and the others are `repeats`. Raises InputError if an
    image has rows with different names.
    """
    rows = np.full(len(images), -1, np.int64)
    unmatched: list[str] = []
    repeats: list[tuple[int, int]] = []
    lookup = find_names(names, images, root)
    for row, (name, image) in enumerate(zip(names, lookup.images, strict=True)):
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
    """Match the names of rows to n sentences.

    `texts` are the sentences, and `owners` (n,), ascending, are the positions of their images in `images`. A name is
    the text of a sentence, which several sentences may have, or IMAGE#k, where k counts the sentences of an image from
    0 and IMAGE is a name of an image below the folder `root`, by the rules of `find_names`. Among several rows with the
    same text, the first is matched, and the others are `repeats`. `labels` are the names of the sentences for messages.
    Several rows for one sentence are an error in all other cases, such as a row with its text and a row with IMAGE#k,
    or two rows with IMAGE#k. Raises InputError in these cases, and if an image has no sentence k.
    """
    rows = np.full(len(texts), -1, np.int64)
    first = np.searchsorted(owners, np.arange(len(images) + 1)).tolist()
    by_text: dict[str, list[int]] = {}
    for number, text in enumerate(texts):
        by_text.setdefault(_words(text), []).append(number)
    heads = list(dict.fromkeys(name.rpartition("#")[0] for name in names))
    lookup = find_names(heads, images, root)
    owner = dict(zip(heads, lookup.images, strict=True))
    unmatched: list[str] = []
    repeats: list[tuple[int, int]] = []
    first_rows: dict[str, int] = {}
    for row, name in enumerate(names):
        head, _, number = name.rpartition("#")
        image = owner[head] if number.isascii() and number.isdecimal() and len(number) <= MAX_NUMBER_DIGITS else None
        words = _words(name)
        if sentences := by_text.get(words):
            if (before := first_rows.setdefault(words, row)) != row:
                repeats.append((before, row))
                continue
            for sentence in sentences:
                _put(rows, sentence, row, names, labels)
        elif image is None:
            unmatched.append(name)
        elif int(number) >= (count := first[image + 1] - first[image]):
            raise InputError(
                f"there is no sentence {name}, because {images[image]} has {count} sentences in this run, numbered from"
                " 0. Correct the number, or name the rows by the words of the sentences."
            )
        else:
            _put(rows, first[image] + int(number), row, names, labels)
    return Matching(rows, unmatched, lookup, repeats)


def find_names(names: Sequence[str], images: Sequence[str], root: Path | str | None = None) -> Lookup:
    """Find the position of each name among the image paths `images` below the folder `root`.

    Names are first compared exactly. The other names are compared in each Reading up to ENDING: first whole names, then
    file names, and then file names without a suffix, which may be keys of samples in a webdataset. File names and keys
    must be unique among the names and among the images. If an image is already matched by one name, another name that
    differs from the image's name in case or suffix does not match this image.
    """
    matched = _find_exactly(names, images)
    counts: Counter[int] = Counter()
    ambiguous: dict[str, list[str]] = {}
    distinct = list(dict.fromkeys(names))
    matcher = NameMatcher(root)

    def find(name_part: Callable[[str], str], image_part: Callable[[str], str]) -> None:
        """Match the names that have no image yet by `name_part` of the name and `image_part` of the image's path.

        The matches are added to `matched`, `counts` and `ambiguous`. Names whose part is empty are left out.
        """
        wanted = {part: distinct[at] for part, at in _unique(distinct, name_part).items()}
        wanted = {part: name for part, name in wanted.items() if part and name not in matched}
        if not wanted:
            return
        taken = set(matched.values())
        spellings = [Spelling(image_part(image), position) for position, image in enumerate(images)]
        matches = list(matcher.match(wanted, lambda: spellings))
        for part, match in sorted(matches, key=lambda pair: pair[1].reading):
            name = wanted[part]
            image, *others = match.targets
            if others:
                ambiguous[name] = [images[image], images[others[0]]]
            elif match.reading < Reading.CASE or image not in taken:
                matched[name] = image
                counts[match.reading] += 1

    find(str, str)
    find(_file, basename)
    find(_key, _stem)
    return Lookup([matched.get(name) for name in names], counts, ambiguous)


def _find_exactly(names: Sequence[str], images: Sequence[str]) -> dict[str, int]:
    """Return the position of the image for each name that matches exactly.

    A name matches exactly if it is the path of an image, or if only this name and only one image have its file name. A
    file name without a suffix is compared with the file names of the images without their suffixes.
    """
    positions = {image: position for position, image in enumerate(images)}
    by_file = _unique(images, basename)
    by_stem = _unique(images, _stem)
    unique = _unique(dict.fromkeys(names), basename)
    matched = {}
    for name in names:
        image = positions.get(name)
        if image is None and (file := basename(name)) in unique:
            image = (by_file if splitext(file)[1] else by_stem).get(file)
        if image is not None:
            matched[name] = image
    return matched


def _put(rows: np.ndarray, position: int, row: int, names: Sequence[str], labels: Sequence[str]) -> None:
    """Set `rows[position]`, the row of an image or sentence, to `row`.

    Raises InputError if the image or sentence has a row already, which means that its value was not -1. `names` are the
    names of rows, and `labels` the names of images or sentences, both for the message.
    """
    other = int(rows[position])
    if other >= 0:
        spelt = "" if names[row] == names[other] else f" ({names[other]!r} and {names[row]!r})"
        raise InputError(
            f"rows {other} and {row} both have a vector for {labels[position]}{spelt}. Remove one of the two rows,"
            " which are counted from 0."
        )
    rows[position] = row


def _words(text: str) -> str:
    return unicodedata.normalize("NFC", " ".join(text.split()))


def _file(name: str) -> str:
    """Return the last part of a path, which is divided by / or \\, if this part has a suffix, or else ""."""
    file = basename(name.replace("\\", "/"))
    return file if splitext(file)[1] else ""


def _key(name: str) -> str:
    """Return the last part of a path, which is divided by / or \\, if this part has no suffix, or else "".

    The result is compared with the file names of images without their suffixes (`_stem`).
    """
    return "" if _file(name) else basename(name.replace("\\", "/"))


def _stem(name: str) -> str:
    return splitext(basename(name))[0]


def _unique(names: Iterable[str], part_of: Callable[[str], str]) -> dict[str, int]:
    """Return each part of a name that only one of the `names` has, with the position of this name. `part_of(name)`
    returns the part."""
    parts = [part_of(name) for name in names]
    counts = Counter(parts)
    return {part: position for position, part in enumerate(parts) if counts[part] == 1}


def some(names: Sequence[str], count: int = 3) -> str:
    """Return the first `count` names as a text for messages, such as `a, b, c and 7 more`."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more

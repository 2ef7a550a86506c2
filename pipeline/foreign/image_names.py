"""Matches names in lists to photos, exactly or in the spelling of another system.

A list may be from a Mac, where accented letters are stored as two characters (NFD), from Windows, where paths have
backslashes and upper and lower case do not matter, or from a program that writes absolute paths. All lists of names are
read by the rules in this module.
"""

import os
import posixpath
import re
import unicodedata
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar


class Reading(IntEnum):
    """The rules by which a name can match a photo, from the strictest to the loosest.

    Each reading includes all readings before it. A name refers to the photos that match it in the strictest reading in
    which any photo matches.
    """

    EXACT = 0
    UNICODE = 1
    PLAIN_PATH = 2
    SLASHES = 3
    STRIPPED = 4
    INSIDE_ROOT = 5
    CASE = 6
    ENDING = 7
    LEADING_ZEROS = 8
    OTHER_FOLDER = 9
    """The reading in which the photo may be in another folder. It is only used for lists whose photos must exist:
    IMG_1.jpg, or C:\\me\\IMG_1.jpg of another machine, matches 2019/IMG_1.jpg."""


DESCRIPTIONS = {
    Reading.EXACT: "exactly",
    Reading.UNICODE: "in another form of Unicode (NFC)",
    Reading.PLAIN_PATH: "without ./ and doubled slashes",
    Reading.SLASHES: "after reading \\ as /",
    Reading.STRIPPED: "without blanks around them",
    Reading.INSIDE_ROOT: "as paths inside data_root",
    Reading.CASE: "in another case",
    Reading.ENDING: "without the file's ending",
    Reading.LEADING_ZEROS: "without the zeros before a number",
    Reading.OTHER_FOLDER: "in another folder",
}
"""Reading -> the end of the message that says that names match in this reading."""
IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jif", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
    + (".ppm", ".pgm", ".avif", ".jp2", ".heic", ".heif")
)
WHOLE_PATH = re.compile(r"/|(.*/)?[a-z]:/", re.DOTALL)
"""A pattern for the beginning of an absolute path in lower case, which is a slash or a drive of Windows. Folders may
precede the drive, as in `x/c:/a.jpg`."""
DRIVE = re.compile(r"[A-Za-z]:")
LINK = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
ID = re.compile(r"(?:id:)?(0|[1-9][0-9]*)")
"""The name of a photo of an index by its image_id, such as `id:2`. The number alone may also be the name of a file."""
MAX_CHOICES = 4
"""Largest number of photos that a message lists for an ambiguous name."""
MAX_NAMES_PER_PASS = 200_000
"""Largest number of names without an exact match that are searched for in one pass over the photos."""

Target = TypeVar("Target", bound=Hashable)


def listed_name(image: Mapping[str, Any]) -> str:  # a row of an Arrow table
    """Return the name that lists have for an image of a manifest or index: the path of its file, followed by its name
    in this file if the file is a shard."""
    return "/".join(filter(None, (image["path"], image["member"])))


def escape_line_breaks(text: str) -> str:
    """Write each line break as a backslash and a letter, so that a name or a row with a name is one line of a file.

    The result is unambiguous, because the names of photos have no backslash.
    """
    return text.replace("\n", r"\n").replace("\r", r"\r")


def restore_line_breaks(name: str) -> str:
    """Return the name of a photo with the line breaks that `escape_line_breaks` has replaced."""
    return name.replace(r"\n", "\n").replace(r"\r", "\r")


def relative_name(name: str) -> str:
    """Convert the name of an image, which need not exist on this machine, to a relative path.

    `/data/a.jpg`, `C:\\data\\a.jpg` and `../data/a.jpg` become `data/a.jpg`. A URL is not changed, unless it has `..`
    or a backslash.
    """
    if LINK.match(name) and ".." not in name.split("/") and "\\" not in name:
        return name
    path = name.replace("\\", "/")
    path = path[2:] if DRIVE.match(path) else path
    return posixpath.normpath(f"/{path}").lstrip("/")


class StoredPhoto(NamedTuple):
    """A photo of an index or a manifest.

    `image_id` is its id, and `path` is its path below the folder `root`. If the photo is in a shard, `path` is the path
    of the shard, and `member` is the name of the photo in the shard. `sha256` is the hash of the photo's bytes, or ""
    if the hash is not known.
    """

    image_id: int
    path: str
    member: str | None
    sha256: str
    root: str

    @property
    def name(self) -> str:
        """The name of the photo relative to the folder `root`: its path, followed by its name in the shard if the photo
        is in a shard."""
        return f"{self.path}/{self.member}" if self.member else self.path

    @property
    def whole(self) -> str:
        """The name of the photo with the folder `root` before it."""
        return f"{self.root}/{self.name}"

    @property
    def shown(self) -> str:
        """The id and the name with the folder, such as `id:2 (/photos/a.jpg)`, for messages. Both are unique in an
        index."""
        return f"id:{self.image_id} ({self.whole})"

    def spellings(self) -> Iterator["Spelling[Self]"]:
        """Yield the names by which lists and users may refer to the photo."""
        if self.member is None:
            yield Spelling(self.path, self)
        else:
            parent, name = posixpath.split(self.member)
            sample = posixpath.join(parent, name.partition(".")[0])
            for inside in (self.member, sample):
                yield from (Spelling(f"{shard}{inside}", self) for shard in ("", f"{self.path}/", f"{self.path}::"))
            yield Spelling(self.path, self, shard=True)


class Spelling(NamedTuple, Generic[Target]):
    """A name of the photo `target`.

    If `from_root` is true, the name only matches in Reading.INSIDE_ROOT and in looser readings. Messages show the photo
    as `shown`, or as `name` if `shown` is empty. If `shard` is true, `name` is the name of a shard, and refers to all
    photos in the shard.
    """

    name: str
    target: Target
    from_root: bool = False
    shown: str = ""
    shard: bool = False


Forms = tuple[str, ...]
"""The normal forms of a name, one for each Reading, as `NameMatcher.forms` returns them."""


class Match(NamedTuple, Generic[Target]):
    """The photos that a name matches.

    `reading` is the strictest reading in which the name matches, and `targets` has the matching photos with their names
    for messages. If `shard` is true, the name is the name of a shard, and the targets are all photos in it.
    """

    reading: int
    targets: Mapping[Target, str]
    shard: bool = False

    @property
    def ambiguous(self) -> bool:
        """Whether the name matches several photos that are not in one named shard."""
        return len(self.targets) > 1 and not self.shard

    @property
    def choice(self) -> str:
        """A part of a message that lists at most MAX_CHOICES of the matching photos, and counts the others, such as
        `may be 'a.jpg' or 'b.jpg'`."""
        names = [*self.targets.values()]
        others = [f"one of {len(names) - MAX_CHOICES} more"] if len(names) > MAX_CHOICES else []
        return f"may be {' or '.join([*names[:MAX_CHOICES], *others])}"


class NameMatcher:
    """A matcher of names to photos below the folder `root`. Names may be absolute or relative to this folder. If `root`
    is None, an absolute name matches a relative name only in Reading.OTHER_FOLDER."""

    def __init__(self, root: Path | str | None = None) -> None:
        roots: set[str] = set()
        if root is not None:
            roots.add(str(root))
            if "://" not in str(root):
                roots |= {os.path.abspath(str(root)), os.path.realpath(str(root))}
                roots |= {f"file://{path}" for path in roots if os.path.isabs(path)}
        plain = (_plain(_composed(path).replace("\\", "/")) for path in roots)
        self._roots = sorted((f"{path.rstrip('/')}/" for path in plain if path.strip("/")), key=len, reverse=True)
        self._folded = [_composed(path.casefold()) for path in self._roots]

    def forms(self, name: str) -> Forms:
        """Return the normal form of a name in each Reading. Two names match in a reading if their forms are equal.

        Names that match in one reading match in all looser readings.
        """
        composed = _composed(name)
        plain = _plain(composed)
        slashed = _plain(plain.replace("\\", "/"))
        bare = _plain(slashed.strip()).strip()
        below = _without(self._roots, bare)
        folded = _without(self._folded, _composed(below.casefold()))
        stem, ending = posixpath.splitext(folded)
        stem = stem if ending in IMAGE_SUFFIXES else folded
        parent, last = posixpath.split(stem)
        last = without_zeros(last)
        return name, composed, plain, slashed, bare, below, folded, stem, posixpath.join(parent, last), last

    def match(
        self,
        names: Collection[str],
        spellings: Callable[[], Iterable[Spelling[Target]]],
        last: Reading = Reading.ENDING,
        wary: bool = False,
    ) -> Iterator[tuple[str, Match[Target]]]:
        """Yield each of the `names` that matches photos in a reading up to `last`, with its match.

        `spellings()` yields the names of all photos, and is called once for every MAX_NAMES_PER_PASS names. Memory is
        only needed for `names`, which should be names without an exact match. If `wary` is true, a photo in another
        folder counts as much as a photo whose name differs in case or suffix, so the name is ambiguous if both exist.
        """
        names = list(names)
        for first in range(0, len(names), MAX_NAMES_PER_PASS):
            wanted = {name: self.forms(name) for name in names[first : first + MAX_NAMES_PER_PASS]}
            alike: dict[str, list[tuple[Forms, Spelling[Target]]]] = {forms[last]: [] for forms in wanted.values()}
            for spelling in spellings():
                forms = self.forms(spelling.name)
                if forms[last] in alike:
                    alike[forms[last]].append((forms, spelling))
            for name, forms in wanted.items():
                if match := _first_agreeing(forms, alike[forms[last]], last, wary):
                    yield name, match


class Takedown:
    """A list of photos to remove, or of captions to remove, which are written as PHOTO TAB CAPTION.

    A line is the absolute path of a photo, its path below the folder of the photos, its name inside a shard, or its
    file name if this name is unique. Empty lines and comments (#) are ignored, unless a photo has such a name. The
    lines in `exact` are stored paths. They only match photos with this path, in any form of Unicode, and never
    captions. If `matcher` is None, the list is about photos of an index, and a line may also be an id.
    """

    def __init__(self, lines: Iterable[str], matcher: NameMatcher | None = None, exact: Collection[str] = ()) -> None:
        self.matcher = matcher or NameMatcher()
        asked = list(lines)
        self._exact = set(exact).difference(asked)
        self.lines = [line for line in dict.fromkeys([*asked, *exact]) if line.strip()]
        self.unmatched = {line: "" for line in self.lines if not line.lstrip().startswith("#")}
        """The lines that have matched nothing so far, with the reason, which may be empty."""
        for line in self.unmatched if matcher else ():
            if "id:" in line and ID.fullmatch(line.strip()):
                self.unmatched[line] = " (an id: every ingest numbers the photos anew, so write the photo's path)"
        self._forms = {self.matcher.forms(line)[Reading.CASE]: line for line in self.unmatched}

    def match(
        self,
        spellings: Callable[[], Iterable[Spelling[Target]]],
        matcher: NameMatcher | None = None,
        names: Collection[str] | None = None,
    ) -> Iterator[tuple[str, Match[Target]]]:
        """Yield each line, or each of `names` if they are given, that matches photos, with its match.

        `spellings()` yields the names of all photos. `matcher` replaces the matcher of the list if it is given.
        """
        names = self.lines if names is None else names
        lasts = {line: Reading.ENDING if {"/", "\\"} & {*line} else Reading.OTHER_FOLDER for line in names}
        lasts |= dict.fromkeys(self._exact.intersection(lasts), Reading.UNICODE)
        for last in {*lasts.values()}:
            lines = [line for line in lasts if lasts[line] == last]
            yield from (matcher or self.matcher).match(lines, spellings, last, wary=last == Reading.OTHER_FOLDER)

    def meets(self, line: str, match: Match[Target]) -> bool:
        """Return whether the photos that a line matches must be removed, and update `unmatched`.

        The photos are kept if the match is ambiguous. The line then stays in `unmatched`, with the choice of photos.
        """
        if match.ambiguous:
            self.unmatched[line] = f" (it {match.choice}; write one of these)"
            return False
        self.unmatched.pop(line, None)
        return True

    def names(self, name: str) -> bool:
        """Return whether a line matches `name`, the key of records whose image is not known, and update `unmatched`.

        A line that matches several photos does not match `name`.
        """
        line = self._forms.get(self.matcher.forms(name)[Reading.CASE])
        if line is None or self.unmatched.get(line):
            return False
        self.unmatched.pop(line, None)
        return True

    def captions(self) -> dict[str, list[str]]:
        """Return the lines PHOTO TAB CAPTION as lists, by the name PHOTO that they share. Other lines are left out."""
        lines: dict[str, list[str]] = {}
        for line in self.lines:
            name, tab, _ = line.rpartition("\t")
            if tab and line not in self._exact:
                lines.setdefault(name.strip(), []).append(line)
        return lines

    def meets_caption(self, line: str, text: str | None) -> bool:
        """Return whether a line PHOTO TAB CAPTION names the caption `text` of its photo. Differences in spaces are
        ignored.

        `text` is None if the whole photo is removed, with all of its captions. The result is then true. If the result
        is true, the line is removed from `unmatched`.
        """
        if text is not None and _composed(line.rpartition("\t")[2]).split() != _composed(text).split():
            return False
        self.unmatched.pop(line, None)
        return True


def find_stored(
    lines: Iterable[str], photographs: Callable[[], Iterable[StoredPhoto]]
) -> tuple[dict[str, list[StoredPhoto]], dict[str, str]]:
    """Find the photos of an index that the lines of a list name. `photographs()` yields all photos of the index.

    Return two mappings: from each line that names photos to these photos, and from each other line to the reason, which
    is empty if no photo has this name. Blank lines, and comments that name no photo, are in neither mapping. A line has
    one of the forms that Takedown describes, or is an id: `id:2`, or `2`, which is ambiguous if another photo has the
    name 2. Only the name of a shard can have several photos. If the index has photos of several folders, a file name
    that photos of two folders have is ambiguous, even if it is the whole path of one of these photos below its folder.
    """
    takedown = Takedown(lines)
    numbers = {line: match[1] for line in takedown.lines if (match := ID.fullmatch(line.strip()))}
    wanted = set(numbers.values())
    ids = {number: photo for photo in photographs() if (number := str(photo.image_id)) in wanted}
    matches: dict[str, list[Match[StoredPhoto]]] = {line: [] for line in takedown.lines}

    def spell(root: str) -> Iterator[Spelling[StoredPhoto]]:
        return (spelling for photo in photographs() if photo.root == root for spelling in photo.spellings())

    for root in dict.fromkeys(photo.root for photo in photographs()):
        for line, match in takedown.match(partial(spell, root), NameMatcher(root)):
            matches[line].append(match)
    stored: dict[str, list[StoredPhoto]] = {}
    for line, line_matches in matches.items():
        strictest = min((match.reading for match in line_matches), default=0)
        if {"/", "\\"} & {*line}:  # Only a file name without folders may mean photos that match in different readings.
            line_matches = [match for match in line_matches if match.reading == strictest]
        meant = {photo for match in line_matches for photo in match.targets}
        if line in numbers and (by_id := ids.get(numbers[line])):
            meant = {by_id} if "id:" in line else meant | {by_id}
        targets = {photo: photo.shown for photo in sorted(meant)}
        is_shard = len(line_matches) == 1 and line_matches[0].shard
        if targets and takedown.meets(line, Match(strictest, targets, is_shard)):
            stored[line] = list(targets)
    return stored, takedown.unmatched


def describe_reading(reading: int, count: int, of: int, what: str) -> str:
    """Return a line for the user that says that `count` of the `of` names match in a `reading`.

    `what` is the noun for the names, such as `names of files`.
    """
    return f"{count} of {of} {what} match {DESCRIPTIONS[Reading(reading)]}"


def _first_agreeing(
    forms: Forms, alike: list[tuple[Forms, Spelling[Target]]], last: Reading, wary: bool
) -> Match[Target] | None:
    """Match a name to the photos that agree with it in the strictest reading, or return None if none agrees.

    `forms` are the forms of the name. `alike` has a pair for each photo that agrees with the name in the reading
    `last`: the forms of the photo's name, and the photo. `NameMatcher.match` describes `wary`.
    """
    # A name with a suffix is compared with its suffix and zeros: a.jpg is not a.png, and 7.jpg is not 007.jpg.
    loosest = Reading.LEADING_ZEROS if last == Reading.OTHER_FOLDER else Reading.ENDING
    if forms[Reading.ENDING] != forms[Reading.CASE]:
        loosest = Reading.CASE
    readings = [reading for reading in Reading if reading < Reading.CASE or (reading <= loosest and not wary)]
    if last == Reading.OTHER_FOLDER:
        readings.append(Reading.OTHER_FOLDER)
    for reading in readings:
        if reading == Reading.OTHER_FOLDER:
            agreeing = _elsewhere(forms[loosest], [(theirs[loosest], spelling) for theirs, spelling in alike])
        else:
            agreeing = [spelling for theirs, spelling in alike if theirs[reading] == forms[reading]]
        if reading < Reading.INSIDE_ROOT:
            agreeing = [spelling for spelling in agreeing if not spelling.from_root]
        if agreeing:
            targets = {spelling.target: spelling.shown or repr(spelling.name) for spelling in agreeing}
            has_one_name = len({spelling.name for spelling in agreeing}) == 1
            return Match(reading, targets, has_one_name and all(spelling.shard for spelling in agreeing))
    return None


def _elsewhere(name: str, alike: list[tuple[str, Spelling[Target]]]) -> list[Spelling[Target]]:
    """Return the photos with the file name of `name` that are in the folder of `name` or at any depth below this
    folder. `alike` has pairs of a photo's path and the photo.

    If `name` is an absolute path of another machine, the folder is not compared. Instead, the folders before the file
    name are compared from the last to the first. The result has the photos with this file name that have the most of
    these folders in common with `name`.
    """
    folder, file = posixpath.split(name)
    alike = [(path, spelling) for path, spelling in alike if posixpath.basename(path) == file]
    if not WHOLE_PATH.match(name):
        return [spelling for path, spelling in alike if path.startswith(posixpath.join(folder, ""))]
    backwards = name.split("/")[::-1]
    shared = [len(os.path.commonprefix([backwards, path.split("/")[::-1]])) for path, _ in alike]
    most = max(shared, default=0)
    return [spelling for (_, spelling), depth in zip(alike, shared, strict=True) if depth == most]


def without_zeros(name: str) -> str:
    """Return a name without its leading zeros, if it has only digits: 500 for 000000000500, and 0 for 000."""
    return (name.lstrip("0") or "0") if name.isdecimal() else name


def is_plain(path: str) -> bool:
    """Return whether a path has no doubled slash and no part that is only a dot before another part, as in `a/./b`."""
    return "//" not in path and "/./" not in path and not path.startswith("./")


def _composed(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def _plain(path: str) -> str:
    if is_plain(path):
        return path
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return "/" * path.startswith("/") + "/".join(parts)


def _without(roots: list[str], path: str) -> str:
    return next((path.removeprefix(root) for root in roots if path.startswith(root)), path)

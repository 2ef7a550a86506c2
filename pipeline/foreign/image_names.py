"""How a name in a list meets a photograph: exactly, or else in a spelling that another system has given it.

Lists are made elsewhere: on a Mac, which takes names apart (NFD), on Windows, with backslashes and whatever case, by a
program that writes whole paths. Every list of names is read by these rules and no others.
"""

import os
import posixpath
import re
import unicodedata
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

READINGS = (
    "exactly",
    "in another form of Unicode (NFC)",
    "without ./ and doubled slashes",
    "after reading \\ as /",
    "without blanks around them",
    "as paths inside data_root",
    "in another case",
    "without the file's ending",
    "without the zeros before a number",
    "in another folder",
)
"""How a name may be read. Each reading allows for all before it; of the photographs that a name may mean, those count
that agree in the first one."""
IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jif", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
    + (".ppm", ".pgm", ".avif", ".jp2", ".heic", ".heif")
)
WHOLE = re.compile(r"/|(.*/)?[a-z]:/", re.DOTALL)
"""What a whole path begins with, also behind the folder of the photographs, before which a drive says nothing."""
DRIVE, LINK = re.compile(r"[A-Za-z]:"), re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
COMPOSED = 1
BELOW = len(READINGS) - 1
"""The reading for lists of photographs that are there, by which IMG_1.jpg, and another machine's C:\\me\\IMG_1.jpg, is
2019/IMG_1.jpg."""
ENDING = BELOW - 2
CASE = ENDING - 1
FROM_ROOT = CASE - 1
"""The reading from which on paths relative to data_root are names, too, where a list has others."""
ID = re.compile(r"(?:id:)?(0|[1-9][0-9]*)")
"""The name of a photograph of an index by its image_id, `id:2`. The number alone may be a file's name as well."""
MAX_CHOICES = 4
"""Photographs that a message names if a name may mean any of them."""
TOGETHER = 200_000
"""Names that did not match exactly and are looked for in one pass over the photographs."""


def listed_name(image: Mapping[str, Any]) -> str:
    """What lists call an image of a manifest or bundle: its path, and behind it its name in that shard."""
    return "/".join(filter(None, (image["path"], image["member"])))


def relative_name(name: str) -> str:
    """The name of an image that is not on this machine as a path below some folder: `/data/a.jpg`, `C:\\data\\a.jpg`
    and `../data/a.jpg` are `data/a.jpg`. A link stays as it is, unless it has `..` or a backslash."""
    if LINK.match(name) and ".." not in name.split("/") and "\\" not in name:
        return name
    path = name.replace("\\", "/")
    path = path[2:] if DRIVE.match(path) else path
    return posixpath.normpath(f"/{path}").lstrip("/")


class StoredPhoto(NamedTuple):
    """A photograph of an index or a manifest: its `image_id` there, its `path` below the folder `root`, and its name in
    the shard at that path."""

    image_id: int
    path: str
    member: str | None
    sha256: str
    root: str

    @property
    def name(self) -> str:
        """What lists of this folder call it."""
        return f"{self.path}/{self.member}" if self.member else self.path

    @property
    def whole(self) -> str:
        return f"{self.root}/{self.name}"

    @property
    def shown(self) -> str:
        """The id and the whole path, which never mean another photograph of the index."""
        return f"id:{self.image_id} ({self.whole})"

    def spellings(self) -> Iterator["Spelling"]:
        """Yield the names by which lists and users call it."""
        if self.member is None:
            yield Spelling(self.path, self)
        else:
            parent, name = posixpath.split(self.member)
            sample = posixpath.join(parent, name.partition(".")[0])
            for inside in (self.member, sample):
                yield from (Spelling(f"{shard}{inside}", self) for shard in ("", f"{self.path}/", f"{self.path}::"))
            yield Spelling(self.path, self, shard=True)


class Spelling(NamedTuple):
    """A `name` of the photograph `target`, which counts only from the reading FROM_ROOT on if it is `from_root`.
    Messages call the photograph `shown`, or else by this name. The name of a `shard` means all photographs in it."""

    name: str
    target: Hashable
    from_root: bool = False
    shown: str = ""
    shard: bool = False


Spellings = Callable[[], Iterable[Spelling]]
Alike = list[tuple[tuple[str, ...], Spelling]]


class Match(NamedTuple):
    """The first `reading` in which a name means photographs, and the names of these `targets` in messages. The targets
    may be all photographs of one `shard`."""

    reading: int
    targets: Mapping[Hashable, str]
    shard: bool = False

    @property
    def ambiguous(self) -> bool:
        """Whether the name may mean one photograph or another."""
        return len(self.targets) > 1 and not self.shard

    @property
    def choice(self) -> str:
        names = [*self.targets.values()]
        others = [f"one of {len(names) - MAX_CHOICES} more"] if len(names) > MAX_CHOICES else []
        return f"may be {' or '.join([*names[:MAX_CHOICES], *others])}"


class Readings:
    """The forms of names of photographs below the folder `root`, which may be written with or without it."""

    def __init__(self, root: Path | str | None = None) -> None:
        roots = set() if root is None else {str(root)}
        if roots and "://" not in str(root):
            roots |= {os.path.abspath(root), os.path.realpath(root)}
            roots |= {f"file://{path}" for path in roots if os.path.isabs(path)}
        plain = (_plain(_composed(path).replace("\\", "/")) for path in roots)
        self._roots = sorted((f"{path.rstrip('/')}/" for path in plain if path.strip("/")), key=len, reverse=True)
        self._folded = [_composed(path.casefold()) for path in self._roots]

    def __call__(self, name: str) -> tuple[str, ...]:
        """A form for each of READINGS; names that agree in one agree in all later ones, and may be one photograph by
        the last."""
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
        self, names: Collection[str], photographs: Spellings, last: int = ENDING, wary: bool = False
    ) -> Iterator[tuple[str, Match]]:
        """Each of the `names` that is one of the `photographs` by one of READINGS up to the `last`. The photographs are
        gone through once for every TOGETHER names. If `wary`, a photograph in another folder counts as much as one
        whose name differs in case or ending.

        Memory is for the names alone, which should be those that have not matched exactly.
        """
        names = list(names)
        for first in range(0, len(names), TOGETHER):
            wanted = {name: self(name) for name in names[first : first + TOGETHER]}
            alike: dict[str, Alike] = {forms[last]: [] for forms in wanted.values()}
            for spelling in photographs():
                forms = self(spelling.name)
                if forms[last] in alike:
                    alike[forms[last]].append((forms, spelling))
            for name, forms in wanted.items():
                if match := _first_agreeing(forms, alike[forms[last]], last, wary):
                    yield name, match


class Takedown:
    """The `lines` of a list of photographs to remove, or of captions, as PHOTO TAB CAPTION.

    Empty lines and comments (#) name nothing, but a photograph may be named so. A line is the photograph's whole path,
    its path below the folder of the photographs, its name inside a shard, or a file name that no other photograph has.
    Further lines in `exact` are paths as they are stored. They mean no photograph that is spelt otherwise, except in
    another form of Unicode, and no caption. Without `readings` the list is of photographs in an index, which have ids.
    """

    def __init__(self, lines: Iterable[str], readings: Readings | None = None, exact: Collection[str] = ()) -> None:
        self.readings = readings or Readings()
        asked = list(lines)
        self._exact = set(exact).difference(asked)
        self.lines = [line for line in dict.fromkeys([*asked, *exact]) if line.strip()]
        self.unmatched = {line: "" for line in self.lines if not line.lstrip().startswith("#")}
        """Each line that has named nothing so far, and why, if there is a reason."""
        for line in self.unmatched if readings else ():
            if "id:" in line and ID.fullmatch(line.strip()):
                self.unmatched[line] = " (an id: every ingest numbers the photos anew, so write the photo's path)"
        self._forms = {self.readings(line)[CASE]: line for line in self.unmatched}

    def match(
        self, photographs: Spellings, readings: Readings | None = None, names: Collection[str] | None = None
    ) -> Iterator[tuple[str, Match]]:
        """Match the lines, or other `names`, to photographs, by the `readings` of another folder if they are given."""
        names = self.lines if names is None else names
        lasts = {line: ENDING if {"/", "\\"} & {*line} else BELOW for line in names}
        lasts |= dict.fromkeys(self._exact.intersection(lasts), COMPOSED)
        for last in {*lasts.values()}:
            lines = [line for line in lasts if lasts[line] == last]
            yield from (readings or self.readings).match(lines, photographs, last, wary=last == BELOW)

    def meets(self, line: str, match: Match) -> bool:
        """Whether the images of this match are to be taken down."""
        if match.ambiguous:
            self.unmatched[line] = f" (it {match.choice}; write one of these)"
            return False
        self.unmatched.pop(line, None)
        return True

    def names(self, name: str) -> bool:
        """Whether a line is the `name` of something that is not an image."""
        line = self._forms.get(self.readings(name)[CASE])
        if line is None or self.unmatched.get(line):
            return False
        self.unmatched.pop(line, None)
        return True

    def captions(self) -> dict[str, list[str]]:
        """Groups the lines PHOTO TAB CAPTION by their photo."""
        lines: dict[str, list[str]] = {}
        for line in self.lines:
            name, tab, _ = line.rpartition("\t")
            if tab and line not in self._exact:
                lines.setdefault(name.strip(), []).append(line)
        return lines

    def meets_caption(self, line: str, text: str | None) -> bool:
        """Whether the line PHOTO TAB CAPTION names the caption `text` of its photo, in which runs of blanks are alike.
        The `text` is None if the photo is taken down with all its captions."""
        if text is not None and _composed(line.rpartition("\t")[2]).split() != _composed(text).split():
            return False
        self.unmatched.pop(line, None)
        return True


def find_stored(
    lines: Iterable[str], photographs: Callable[[], Iterable[StoredPhoto]]
) -> tuple[list[StoredPhoto], dict[str, str]]:
    """Find the photographs that the lines of a list name. Return them, and the reason for each line that names none,
    which is empty if nothing is called so.

    A line is as Takedown says, or an id: `id:2`, or `2` unless another photograph is called so.
    """
    takedown = Takedown(lines)
    numbers = {line: match[1] for line in takedown.lines if (match := ID.fullmatch(line.strip()))}
    wanted = set(numbers.values())
    ids = {number: photograph for photograph in photographs() if (number := str(photograph.image_id)) in wanted}
    matches: dict[str, list[Match]] = {line: [] for line in takedown.lines}

    def spell(root: str) -> Iterator[Spelling]:
        return (spelling for one in photographs() if one.root == root for spelling in one.spellings())

    for root in dict.fromkeys(photograph.root for photograph in photographs()):
        for line, match in takedown.match(partial(spell, root), Readings(root)):
            matches[line].append(match)
    found: set[StoredPhoto] = set()
    for line, several in matches.items():
        first = min((match.reading for match in several), default=0)
        several = [match for match in several if match.reading == first]
        meant = {photograph for match in several for photograph in match.targets}
        if by_id := ids.get(numbers.get(line)):
            meant = {by_id} if "id:" in line else meant | {by_id}
        targets = {photograph: photograph.shown for photograph in sorted(meant)}
        if targets and takedown.meets(line, Match(first, targets, len(several) == 1 and several[0].shard)):
            found |= targets.keys()
    return sorted(found), takedown.unmatched


def describe(reading: int, count: int, of: int, what: str) -> str:
    """What to say of names that did not match exactly."""
    return f"{count} of {of} {what} match {READINGS[reading]}"


def _first_agreeing(forms: tuple[str, ...], alike: Alike, last: int, wary: bool) -> Match | None:
    # a.jpg is not a.png, and 7.jpg is not 007.jpg.
    compared = CASE if forms[ENDING] != forms[CASE] else BELOW - 1 if last == BELOW else ENDING
    for reading in (*range(CASE if wary else compared + 1), *range(BELOW, last + 1)):
        if reading == BELOW:
            agreeing = _elsewhere(forms[compared], [(theirs[compared], spelling) for theirs, spelling in alike])
        else:
            agreeing = [spelling for theirs, spelling in alike if theirs[reading] == forms[reading]]
        if reading < FROM_ROOT:
            agreeing = [spelling for spelling in agreeing if not spelling.from_root]
        if agreeing:
            targets = {spelling.target: spelling.shown or repr(spelling.name) for spelling in agreeing}
            one = len({spelling.name for spelling in agreeing}) == 1
            return Match(reading, targets, one and all(spelling.shard for spelling in agreeing))
    return None


def _elsewhere(name: str, alike: list[tuple[str, Spelling]]) -> list[Spelling]:
    """The photographs, by their paths, that are in a folder below that of `name`; for a whole path, which is of another
    machine, those in the most of its last folders."""
    folder, file = posixpath.split(name)
    alike = [(path, spelling) for path, spelling in alike if posixpath.basename(path) == file]
    if not WHOLE.match(name):
        return [spelling for path, spelling in alike if path.startswith(posixpath.join(folder, ""))]
    backwards = name.split("/")[::-1]
    shared = [len(os.path.commonprefix([backwards, path.split("/")[::-1]])) for path, _ in alike]
    most = max(shared, default=0)
    return [spelling for (_, spelling), depth in zip(alike, shared, strict=True) if depth == most]


def without_zeros(name: str) -> str:
    """A name without the zeros before it, if it is a number: 500 for 000000000500."""
    return (name.lstrip("0") or "0") if name.isdecimal() else name


def is_plain(path: str) -> bool:
    """Whether a path has no ./ and no doubled slash."""
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

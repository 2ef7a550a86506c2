"""The folder of a collection: what it contains, and the only place where its files are opened."""

import os
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from pipeline.collections.exclusion import Exclusion
from pipeline.collections.records import Options
from pipeline.errors import InputError, UsageError
from pipeline.foreign.files import UnopenedFile, open_plain
from pipeline.foreign.image_names import IMAGE_SUFFIXES, NameMatcher, Spelling, is_plain, without_zeros

LIST_SUFFIXES = (".txt", ".tsv", ".csv", ".json", ".jsonl", ".parquet", ".token", ".tar", ".xlsx", ".xls", ".ods")
ARCHIVES = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".rar", ".tar")
SEVERAL = "table"
"""The key of collection.files that may be a pattern of several files."""
PHOTOGRAPH, MOST_KINDS = "photo", 5
"""What photographs are counted as, and how many kinds of other files are named."""
LARGEST_LIST = 8 << 30  # bytes of a list that is read line by line; what is read whole has a limit of its own


class CollectionFolder:
    """The folder `root` of a collection and the files that `options` name in it. Raises UsageError where there is
    none."""

    def __init__(self, root: Path, options: Options) -> None:
        self.root = root
        self.tally = options.tally
        self._given = options.files
        self._follow_links = options.follow_links
        self.exclusion = Exclusion(options.exclude)
        if not self.root.is_dir():
            raise UsageError(f"{self.root} is not a folder; set data_root to that of your collection")

    @cached_property
    def matcher(self) -> NameMatcher:
        """The matcher of names in lists to the photos."""
        return NameMatcher(self.root)

    @cached_property
    def stems(self) -> set[str]:
        """The names of its photos without folder, ending and zeros before a number."""
        photos = (name for _, names in self.walk() for name in names if is_image(name))
        return {without_zeros(os.path.splitext(name)[0]) for name in photos}

    def has(self, name: str) -> bool:
        """Whether there is a file of exactly this name, relative to the root."""
        try:
            os.lstat(f"{self.root}/{name}")
        except (OSError, ValueError):
            return False
        return is_plain(name) and not name.startswith("/")

    def spellings(self) -> Iterator[Spelling[str]]:
        """Yield the names of all files that are not ignored, for `matcher`."""
        return (Spelling(name, name) for name, left_out in self.files() if left_out is None)

    def state(self, name: str) -> str:
        """What changes with the content of a file, without opening it."""
        try:
            status = os.stat(os.path.join(self.root, name))
        except (OSError, ValueError):
            return "unreadable"
        return f"{status.st_size} {status.st_mtime_ns}"

    def glob(self, pattern: str) -> list[Path]:
        """What is below the root under names of this pattern, sorted, without what `exclusion` leaves out unless the
        pattern names it. The case of a file's name matters only where both spellings exist."""
        if Path(pattern).is_absolute():  # for which pathlib raises an exception of its own
            raise UsageError(f"collection.files: {pattern} must be a pattern under {self.root}; leave out the folder")
        paths = {*self.root.glob(pattern)}
        if not paths or "*" in pattern:
            paths |= {path for path in self.root.glob(_any_case(pattern)) if path.is_file()}
        return sorted(path for path in paths if not self._left_out(self.label(path), pattern))

    def _left_out(self, path: str, pattern: str) -> bool:
        named = pattern.split("/")
        return any(part not in named and self.exclusion.of_name(part) for part in path.split("/")) or (
            path != pattern and self.exclusion.excludes(path) is not None
        )

    def locate(self, usual: Mapping[str, tuple[str, ...]]) -> dict[str, Path | None]:
        """The file or folder of each key of `usual`: from collection.files, else the first of its usual names (patterns
        under the root) that exists, else None.

        Raises UsageError for an unknown key, a name that does not exist, and a pattern that several files match.
        """
        self.check_keys(usual)
        return {key: self._locate_one(key, names) for key, names in usual.items()}

    def check_keys(self, known: Mapping[str, object] | tuple[str, ...]) -> None:
        """Raises UsageError if collection.files has a key that is not `known`."""
        if unknown := set(self._given) - set(known):
            raise UsageError(f"collection.files: unknown key {min(unknown)}; this format has {', '.join(known)}")

    def _locate_one(self, key: str, usual: tuple[str, ...]) -> Path | None:
        given = self._given.get(key)
        if given is not None:
            path = self.root / given
            if not path.exists():
                paths = [] if Path(given).is_absolute() else self.glob(given)
                if paths and (len(paths) == 1 or key == SEVERAL):
                    return paths[0]
                raise UsageError(f"{path} does not exist; correct collection.files.{key}")
            return path
        for pattern in usual:
            paths = self.glob(pattern) if pattern != "." else [self.root]
            if len(paths) > 1:
                names = ", ".join(path.name for path in paths[:5])
                raise UsageError(f"{self.root} has several files {pattern} ({names}): set collection.files.{key}")
            if paths:
                return paths[0]
        return None

    def tables(self, first: Path) -> list[Path]:
        """Return the `first` table, or all tables that collection.files.table matches."""
        given = self._given.get(SEVERAL, "")
        return self.glob(given) if "*" in given and not (self.root / given).exists() else [first]

    def require(self, path: Path | None, key: str, usual: tuple[str, ...], remedy: str = "put it there") -> Path:
        """The `path` that `locate` found for `key`. Raises UsageError if it found none."""
        if path is None:
            raise self.lacks(" or ".join(usual), f"{remedy}, or name yours as collection.files.{key}")
        return path

    def lacks(self, what: str, remedy: str) -> UsageError:
        """The error for a folder that contains no `what`; it says what is there instead."""
        packed = [f"{name} is an archive: unpack it first; " for name in self.archives() if not name.endswith(".tar")]
        return UsageError(f"{self.root} holds {self._contents()} and no {what}: {''.join(packed[:1])}{remedy}")

    def archives(self) -> list[str]:
        """List the archives in the folder, at any depth."""
        paths = (posixpath.join(below, name) for below, names in self.walk() for name in names)
        return [path for path in paths if path.lower().endswith(ARCHIVES)]

    def _contents(self) -> str:
        """How many photographs and other files of the most frequent kinds the folder contains, at any depth."""
        kinds = self._count()
        photographs = kinds.pop(PHOTOGRAPH, 0)
        counts = [f"{count} {suffix}" for suffix, count in kinds.most_common(MOST_KINDS) if suffix]
        return ", ".join([f"{photographs or 'no'} photo{'s' * (photographs != 1)}", *counts])

    def only_photographs(self) -> bool:
        """Whether the folder contains photographs, and no list that could be about them."""
        kinds = self._count()
        return kinds[PHOTOGRAPH] > 0 and kinds.keys().isdisjoint(LIST_SUFFIXES)

    def _count(self) -> Counter[str]:
        """The files of each suffix, all photographs as PHOTOGRAPH."""
        names = (name for _, names in self.walk() for name in names)
        return Counter(PHOTOGRAPH if is_image(name) else os.path.splitext(name)[1].lower() for name in names)

    def label(self, path: Path) -> str:
        """A file's name in rejects: relative to the root, with forward slashes."""
        return Path(os.path.relpath(path, self.root)).as_posix()

    def image_prefix(self, folder: Path | None) -> str:
        """The prefix that makes names of images in `folder` (None: the root) relative to the root."""
        prefix = "" if folder is None else self.label(folder)
        if prefix.startswith(".."):
            raise UsageError(f"the images' folder {folder} lies outside {self.root}; set data_root to one above both")
        return "" if prefix == "." else prefix

    def walk(self, folder: Path | None = None) -> Iterator[tuple[str, list[str]]]:
        """Each folder under `folder` (None: the root), relative to it ("" for itself), with the names of its files.

        Both are sorted, a.jpg before its copy `a (1).jpg`, and without what `exclusion` leaves out; folders directly
        under the root may be links to other disks. Raises InputError for a folder that cannot be read.
        """
        folder = folder or self.root
        prefix = "" if self.label(folder) == "." else self.label(folder)
        for top in ("", *([] if prefix else self._other_disks())):
            for inside, names in self._walk(folder / top, top or prefix):
                yield "/".join(filter(None, (top, inside))), [name for name, reason in names if reason is None]

    def _other_disks(self) -> list[str]:
        """The links to folders directly under the root that are of no folder below or above it, sorted."""
        root, targets = self.root.resolve(), {name: (self.root / name).resolve() for name in self._linked()}
        return [
            name
            for name, target in sorted(targets.items())
            if not (target.is_relative_to(root) or root.is_relative_to(target) or self.exclusion.of_path(name))
        ]

    def _linked(self) -> list[str]:
        """The folders directly under the root that are links."""
        return [entry.name for entry in os.scandir(self.root) if entry.is_symlink() and os.path.isdir(entry)]

    def files(self) -> Iterator[tuple[str, str | None]]:
        """Every file below the root, relative to it, and why it is left out; None if it is not. Links to folders are
        followed only directly under the root, as in `ingest`."""
        linked = self._linked()
        for top in ("", *linked):
            reason = self.exclusion.of_path(top) if top else None
            for inside, names in self._walk(os.path.join(self.root, top), top, everything=True, above=reason):
                for name, why in names:
                    if top or inside or name not in linked:
                        yield posixpath.join(top, inside, name), why

    def _walk(
        self, folder: Path | str, prefix: str, everything: bool = False, above: str | None = None
    ) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
        """The folders under `folder`, which is at `prefix`, with the names of their files and why each is left out:
        for its own name, its path, or for the folders `above`. With `everything`, folders that are left out and links
        to folders too."""
        reasons: dict[str, str | None] = {os.fspath(folder): above}
        closed: list[tuple[str, str | None]] = []  # of what is left out

        def fail(error: OSError) -> None:
            if not (reason := reasons.get(error.filename)):
                raise InputError(f"{error.filename} cannot be read: {error.strerror}") from error
            closed.append((os.path.relpath(error.filename, folder), reason))

        for parent, folders, names in os.walk(folder, onerror=fail):
            inside = os.path.relpath(parent, folder)
            inside = "" if inside == "." else inside
            whole = posixpath.join(prefix, inside)
            reason = reasons.pop(parent, None)
            into = {name: reason or self.exclusion.of_path(posixpath.join(whole, name)) for name in folders}
            folders[:] = sorted(name for name in folders if everything or into[name] is None)
            names.sort(key=os.path.splitext)
            files = [(name, reason or self.exclusion.of_path(posixpath.join(whole, name))) for name in names]
            if everything:
                links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
                files += [(name, into[name] or "a link to a folder, which is not followed") for name in links]
                reasons |= {os.path.join(parent, name): into[name] for name in folders if into[name]}
            yield inside, files
        if closed:
            yield "", closed

    def open(self, path: Path, most_bytes: float = LARGEST_LIST) -> BinaryIO:
        """Open a list, text or shard for reading. Raises InputError unless it is a regular file of at most
        `most_bytes`, and, without collection.follow_links, if links lead out of the folder."""
        name = self.label(path)
        try:
            if name.startswith("../"):  # only the user's own collection.files can name it
                return os.fdopen(open_plain(str(path.parent), path.name, most_bytes, True), "rb")
            return self.open_below(name, most_bytes)
        except UnopenedFile as error:
            raise InputError(f"{path} cannot be read: {error.detail}") from error

    def open_below(self, name: str, most_bytes: float) -> BinaryIO:
        """As `open`, for a name relative to the root; raises UnopenedFile, the reason to reject this file alone."""
        return os.fdopen(open_plain(os.fspath(self.root), name, most_bytes, self._follow_links), "rb")


def _any_case(pattern: str) -> str:
    """`pattern` for files whose names have its letters in any case."""
    folder, slash, name = pattern.rpartition("/")
    if "." not in name or "[" in name:
        return pattern
    return folder + slash + "".join(f"[{c.lower()}{c.upper()}]" if c.isalpha() and c.isascii() else c for c in name)


def is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES

"""The folder of a collection. This module lists the files in this folder, ignores files that do not belong to the
collection, and opens all files."""

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase, translate
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from pipeline.collections.records import ImageRecord, Options, Record, Reject, Tally
from pipeline.errors import InputError, UsageError
from pipeline.foreign.files import UnopenedFile, open_plain
from pipeline.foreign.image_names import IMAGE_SUFFIXES, NameMatcher, Spelling, is_plain, without_zeros

LIST_SUFFIXES = (".txt", ".tsv", ".csv", ".json", ".jsonl", ".parquet", ".token", ".tar", ".xlsx", ".xls", ".ods")
ARCHIVES = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".rar", ".tar")
PATTERN_KEY = "table"
"""The key of collection.files whose value may be a pattern of several files."""
PHOTO_KIND = "photo"
"""The key for the number of photos in counts of files by suffix."""
MAX_NAMED = 5
"""Largest number of files, or of kinds of files, in a message."""
MAX_LIST_BYTES = 8 << 30
"""Largest size in bytes of a list that is read line by line. A larger list is an error. Files that are read at once
have smaller limits."""
NAS = "thumbnails and deleted files of a NAS"
WINDOWS = "of Windows"
MACOS = "of macOS"
EXCLUDED_NAMES = {
    **dict.fromkeys(("@eadir", "#recycle", "#snapshot", "@tmp", "@sharebin", "@synoresource"), NAS),
    **dict.fromkeys((".@__thumb", "@__thumb", "@recycle", "@recently-snapshot", ".@upload_cache"), NAS),
    **dict.fromkeys((".snapshot", ".snapshots", "~snapshot", ".zfs", ".recycle", "network trash folder"), NAS),
    **dict.fromkeys(("$recycle.bin", "recycler", "system volume information", "found.000"), WINDOWS),
    **dict.fromkeys(("thumbs.db", "thumbs.db:encryptable", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini"), WINDOWS),
    **dict.fromkeys(("__macosx", ".trashes", ".trash", ".appledouble", ".appledb", ".appledesktop"), MACOS),
    **dict.fromkeys(
        (".spotlight-v100", ".fseventsd", ".documentrevisions-v100", ".temporaryitems", ".ds_store"), MACOS
    ),
    **dict.fromkeys(("temporary items", "icon\r", ".localized", ".volumeicon.icns", ".picasaoriginals"), MACOS),
    "lost+found": "of a Linux file system",
    **dict.fromkeys(("dataset_info.json", "dataset_infos.json"), "of Hugging Face's datasets"),
}
"""Names of files and folders, in lower case, that are never part of a collection, with the system that makes them."""
EXCLUDED_PATTERNS = {
    "._*": "AppleDouble, of macOS",
    ".trash-*": "deleted files, of Linux",
    "*@synoeastream": NAS,
    "*@synoresource": NAS,
    "synofile_thumb_*": NAS,
    "synophoto_thumb_*": NAS,
    "~$*": "open documents of Microsoft Office",
}
"""Patterns, in lower case, of further names of files and folders that are never part of a collection, with the system
or program that makes them."""
SUSPECT_NAME = re.compile(r"^[.~s]|@")
"""A pattern that is found in every hidden name, and in every name that a pattern in EXCLUDED_PATTERNS matches, if the
name is in lower case. It is not found in most names of photos, so most names need not be compared with the patterns."""
BY_PATTERN = "collection.exclude "
HIDDEN = "hidden (a name that begins with a dot)"


class Exclusion:
    """The rule for ignored files and folders: files of operating systems, hidden files, and the patterns in
    `collection.exclude`.

    A pattern without a slash is compared with the name of each file and folder. A pattern with a slash is compared with
    the path relative to the collection's root. Slashes at the beginning or end of a pattern do not count.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        of_paths = [pattern for pattern in patterns if "/" in pattern.strip("/")]
        self._names = {pattern: pattern.strip("/") for pattern in patterns if pattern not in of_paths}
        self._paths = {pattern: re.compile(path_expression(pattern.strip("/"))) for pattern in of_paths}

    def of_name(self, name: str) -> str | None:
        """Return why a file or folder of this name is ignored, whatever folder it is in, or None if the name is not a
        reason."""
        folded = name.lower()
        if folded in EXCLUDED_NAMES:
            return f"{name.strip()} ({EXCLUDED_NAMES[folded]})"
        if SUSPECT_NAME.search(folded):
            if pattern := next((pattern for pattern in EXCLUDED_PATTERNS if fnmatchcase(folded, pattern)), None):
                return f"{pattern} ({EXCLUDED_PATTERNS[pattern]})"
            if name.startswith("."):
                return HIDDEN
        return self._of_named_pattern(name)

    def of_path(self, path: str) -> str | None:
        """Return why the file or folder at `path`, relative to the root, is ignored because of its name or path, or
        None if neither is a reason."""
        return self.of_name(path.rpartition("/")[2]) or self._of_path_pattern(path)

    def of_whole_path(self, path: str) -> str | None:
        """Return why the file at `path`, relative to the root, is ignored, because of its path or of a folder above
        it, or None if it is not ignored."""
        parts = path.split("/")
        return next(filter(None, (self.of_path("/".join(parts[: depth + 1])) for depth in range(len(parts)))), None)

    def excludes(self, path: str) -> str | None:
        """Return the reason, with the pattern, if a pattern of `collection.exclude` excludes the file at `path`, which
        is relative to the root. Return None if no pattern excludes it."""
        if not self._names and not self._paths:
            return None
        parts = path.split("/")
        reasons = (
            self._of_named_pattern(name) or self._of_path_pattern("/".join(parts[: depth + 1]))
            for depth, name in enumerate(parts)
        )
        return next(filter(None, reasons), None)

    def _of_named_pattern(self, name: str) -> str | None:
        """Return the reason, with the pattern, if a pattern without a slash matches the name of a file or folder, or
        else None."""
        return next((BY_PATTERN + given for given, pattern in self._names.items() if fnmatchcase(name, pattern)), None)

    def _of_path_pattern(self, path: str) -> str | None:
        """Return the reason, with the pattern, if a pattern with a slash matches the path of a file or folder, or else
        None."""
        matching = (pattern for pattern, expression in self._paths.items() if expression.fullmatch(path))
        return next((BY_PATTERN + pattern for pattern in matching), None)

    def without_excluded(self, records: Iterable[Record], tally: Tally) -> Iterator[Record]:
        """Yield the records, without images that the patterns of `collection.exclude` exclude, and without the records
        that belong to these images. The excluded images are counted in the notes of the `tally`."""
        excluded: set[str] = set()
        for record in records:
            if isinstance(record, Reject):
                yield record
                continue
            if isinstance(record, ImageRecord) and (reason := self.excludes(record.path)):
                if record.key not in excluded:
                    tally.notes[f"images of a list are left out with their texts: {reason}"] += 1
                excluded.add(record.key)
            if record.key not in excluded:
                yield record


def path_expression(pattern: str) -> str:
    """Return a regular expression for the whole paths that a glob pattern matches. As in pathlib, `*` stops at a slash,
    and `**/` stands for any number of folders."""
    parts = []
    for part in pattern.split("/"):
        if part == "**":
            parts.append("(?:.*/)?")
            continue
        expression = translate(part).removeprefix("(?s:").removesuffix(r")\Z")
        parts.append(expression.replace(".*", "[^/]*") + "/")
    return "".join(parts).removesuffix("/")


class CollectionFolder:
    """The folder `root` of a collection, and the files that `options` name in it. Raises UsageError if there is no such
    folder."""

    def __init__(self, root: Path, options: Options) -> None:
        self.root = root
        self.tally = options.tally
        self._given = options.files
        self._follow_links = options.follow_links
        self.exclusion = Exclusion(options.exclude)
        if not self.root.is_dir():
            raise UsageError(f"{self.root} is not a folder. Set data_root to the folder of your collection.")

    @cached_property
    def matcher(self) -> NameMatcher:
        """The matcher that compares names in lists with the photos of the folder."""
        return NameMatcher(self.root)

    @cached_property
    def stems(self) -> set[str]:
        """The names of all photos in the folder that are not ignored, without folder, suffix and leading zeros."""
        photos = (name for _, names in self.walk() for name in names if is_image(name))
        return {without_zeros(os.path.splitext(name)[0]) for name in photos}

    def has(self, name: str) -> bool:
        """Return whether a file or folder has exactly this path relative to the root. The result is false for an
        absolute path, and for a path with `//` or `./`. A path with `..` may lead out of the root, and is not refused
        here."""
        try:
            os.lstat(f"{self.root}/{name}")
        except (OSError, ValueError):
            return False
        return is_plain(name) and not name.startswith("/")

    def spellings(self) -> Iterator[Spelling[str]]:
        """Yield the names of all files that are not ignored, for `matcher`."""
        return (Spelling(name, name) for name, left_out in self.files() if left_out is None)

    def state(self, name: str) -> str:
        """Return the size in bytes and the modification time in nanoseconds of a file, as one text, or the text
        `unreadable` if the file does not exist or its folder cannot be searched. `name` is relative to the root."""
        try:
            status = os.stat(os.path.join(self.root, name))
        except (OSError, ValueError):
            return "unreadable"
        return f"{status.st_size} {status.st_mtime_ns}"

    def glob(self, pattern: str) -> list[Path]:
        """Return the files and folders below the root that match a pattern, sorted.

        Files and folders that `exclusion` ignores are not returned unless the pattern names them. The case of a file's
        name is ignored if the pattern has a `*`, or if nothing matches the pattern exactly. Raises UsageError for an
        absolute pattern.
        """
        # Path.glob would raise NotImplementedError for an absolute pattern.
        if Path(pattern).is_absolute():
            raise UsageError(
                f"collection.files names {pattern}, but must name files relative to {self.root}, such as captions.tsv"
                " or shards/*.tar."
            )
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
        """Return the file or folder of each key of `usual`: from collection.files, or else the first of its usual names
        (patterns under the root) that exists, or else None.

        Raises UsageError for an unknown key, a name that does not exist, and a pattern that several files match. Only
        collection.files.table may match several files, and then the first is returned.
        """
        self.check_keys(usual)
        return {key: self._locate_one(key, names) for key, names in usual.items()}

    def check_keys(self, known: Mapping[str, object] | tuple[str, ...]) -> None:
        """Raise UsageError if collection.files has a key that is not in `known`."""
        if unknown := set(self._given) - set(known):
            raise UsageError(
                f"collection.files has the unknown key {min(unknown)}. Use the keys of this format: {', '.join(known)}."
            )

    def _locate_one(self, key: str, usual: tuple[str, ...]) -> Path | None:
        given = self._given.get(key)
        if given is not None:
            path = self.root / given
            if not path.exists():
                paths = [] if Path(given).is_absolute() else self.glob(given)
                if paths and (len(paths) == 1 or key == PATTERN_KEY):
                    return paths[0]
                if paths:
                    names = ", ".join(map(self.label, paths[:MAX_NAMED]))
                    raise UsageError(
                        f"{path}, which collection.files.{key} names, matches several files: {names}. Name one of"
                        " these files in this key."
                    )
                raise UsageError(
                    f"{path}, which collection.files.{key} names, does not exist. Correct the name in this key."
                )
            return path
        for pattern in usual:
            paths = self.glob(pattern) if pattern != "." else [self.root]
            if len(paths) > 1:
                names = ", ".join(path.name for path in paths[:MAX_NAMED])
                raise UsageError(
                    f"{self.root} has several files that match {pattern}: {names}. Name one of them in"
                    f" collection.files.{key}."
                )
            if paths:
                return paths[0]
        return None

    def tables(self, first: Path) -> list[Path]:
        """Return all tables that match collection.files.table if it is a pattern with a `*`, or else only the table
        `first`."""
        given = self._given.get(PATTERN_KEY, "")
        return self.glob(given) if "*" in given and not (self.root / given).exists() else [first]

    def require(self, path: Path | None, key: str, usual: tuple[str, ...], remedy: str = "put it there") -> Path:
        """Return `path`, the result of `locate` for `key`. Raises UsageError if `path` is None.

        The message has the `usual` names of the file and the `remedy`.
        """
        if path is None:
            raise self.lacks(" or ".join(usual), f"{remedy}, or name yours as collection.files.{key}")
        return path

    def lacks(self, what: str, remedy: str) -> UsageError:
        """Return, without raising it, an error for a folder that does not contain `what`. Its message counts the photos
        and other files in the folder, and ends with the `remedy`."""
        packed = [f" Unpack the archive {name} first." for name in self.archives() if not name.endswith(".tar")]
        kinds = self._count()
        photographs = kinds.pop(PHOTO_KIND, 0)
        counts = [f"{count} {suffix}" for suffix, count in kinds.most_common(MAX_NAMED) if suffix]
        contents = ", ".join([f"{photographs or 'no'} photo{'s' * (photographs != 1)}", *counts])
        step = f"{remedy[:1].upper()}{remedy[1:]}"
        return UsageError(f"{self.root} contains {contents}, and no {what}.{''.join(packed[:1])} {step}.")

    def archives(self) -> list[str]:
        """Return the paths of the archives in the folder, at any depth, relative to the root."""
        paths = (posixpath.join(below, name) for below, names in self.walk() for name in names)
        return [path for path in paths if path.lower().endswith(ARCHIVES)]

    def only_photographs(self) -> bool:
        """Return whether the folder contains photos, and no list that could be about them."""
        kinds = self._count()
        return kinds[PHOTO_KIND] > 0 and kinds.keys().isdisjoint(LIST_SUFFIXES)

    def _count(self) -> Counter[str]:
        """Return the number of files that are not ignored, for each suffix in lower case.

        Photos of any suffix are counted under PHOTO_KIND, and files without a suffix under "".
        """
        names = (name for _, names in self.walk() for name in names)
        return Counter(PHOTO_KIND if is_image(name) else os.path.splitext(name)[1].lower() for name in names)

    def label(self, path: Path) -> str:
        """Return the name of a file in rejects and in messages: its path relative to the root, with forward slashes. It
        is "." for the root, and begins with ".." for a file outside the root."""
        return Path(os.path.relpath(path, self.root)).as_posix()

    def image_prefix(self, folder: Path | None) -> str:
        """Return the path of `folder` relative to the root, which is put before names in this folder. It is "" for the
        root and for None.

        Raises UsageError if the folder is outside the root.
        """
        prefix = "" if folder is None else self.label(folder)
        if prefix.startswith(".."):
            raise UsageError(
                f"The folder of the photos, {folder}, is outside data_root, {self.root}. Set data_root to a folder that"
                " contains both."
            )
        return "" if prefix == "." else prefix

    def walk(self, folder: Path | None = None) -> Iterator[tuple[str, list[str]]]:
        """Yield each folder under `folder` (None: the root), as its path relative to `folder` ("" for `folder` itself),
        and the names of its files.

        Folders and files are sorted, a.jpg before its copy `a (1).jpg`. Files and folders that `exclusion` ignores are
        not yielded. If the whole root is walked, links directly under the root are followed if they lead to a folder
        that is neither below nor above the root, such as a folder on another disk. These linked folders come last. No
        other links to folders are followed. Raises InputError for a folder that cannot be read.
        """
        folder = folder or self.root
        prefix = "" if self.label(folder) == "." else self.label(folder)
        for top in ("", *([] if prefix else self._other_disks())):
            for inside, names in self._walk(folder / top, top or prefix):
                yield "/".join(filter(None, (top, inside))), [name for name, reason in names if reason is None]

    def _other_disks(self) -> list[str]:
        """Return the sorted names of the links directly under the root that lead to a folder outside the root which
        does not contain the root. Ignored links are not returned."""
        root = self.root.resolve()
        targets = {name: (self.root / name).resolve() for name in self._linked()}
        return [
            name
            for name, target in sorted(targets.items())
            if not (target.is_relative_to(root) or root.is_relative_to(target) or self.exclusion.of_path(name))
        ]

    def _linked(self) -> list[str]:
        """Return the names of the links directly under the root that lead to folders."""
        return [entry.name for entry in os.scandir(self.root) if entry.is_symlink() and os.path.isdir(entry)]

    def files(self) -> Iterator[tuple[str, str | None]]:
        """Yield the path of every file below the root, relative to the root, and the reason why the file is ignored, or
        None if it is not ignored.

        Links that are directly under the root and lead to folders are followed. Other links to folders are yielded as
        ignored files. Raises InputError for a folder that cannot be read, unless the folder is ignored.
        """
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
        """Yield the folders under `folder`, relative to `folder`, with the name of each file and the reason why the
        file is ignored (None: it is not ignored).

        `prefix` is the path of `folder` relative to the root. If `folder` itself is ignored, `above` is the reason, and
        all its files are ignored for it. If `everything` is true, the files of ignored folders are yielded too, and
        links to folders are yielded like files. Ignored folders that cannot be read are then yielded like files at the
        end. Raises InputError for any other folder that cannot be read.
        """
        reasons: dict[str, str | None] = {os.fspath(folder): above}
        closed: list[tuple[str, str | None]] = []  # ignored folders that cannot be read

        def fail(error: OSError) -> None:
            if not (reason := reasons.get(error.filename)):
                raise InputError(
                    f"{error.filename} cannot be read ({error.strerror}). Allow this user to read it, add it to"
                    " collection.exclude, or give a folder that has only your photos."
                ) from error
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

    def open(self, path: Path, most_bytes: float = MAX_LIST_BYTES) -> BinaryIO:
        """Open a list, text or shard for reading bytes.

        Raises InputError if the file is not a regular file, has more than `most_bytes`, or cannot be read. Also raises
        InputError if a link leads out of the folder directly under the root in which `path` is, or out of the root if
        `path` is directly under the root. Such links are followed if collection.follow_links is true, or if `path`
        itself is outside the root.
        """
        name = self.label(path)
        try:
            # Only collection.files can name a file outside the root, so links in its path are followed.
            if name.startswith("../"):
                return os.fdopen(open_plain(str(path.parent), path.name, most_bytes, True), "rb")
            return self.open_below(name, most_bytes)
        except UnopenedFile as error:
            raise InputError(f"{path} cannot be read ({error.detail}). Put a readable file there.") from error

    def open_below(self, name: str, most_bytes: float) -> BinaryIO:
        """Open a file as `open` does, by its name relative to the root. Raises UnopenedFile in place of InputError, so
        that the caller can reject only this file."""
        return os.fdopen(open_plain(os.fspath(self.root), name, most_bytes, self._follow_links), "rb")


def _any_case(pattern: str) -> str:
    """Return a pattern that matches file names with the letters of `pattern` in upper or lower case.

    Only letters of ASCII may have either case, and the case of folders matters. A pattern whose file name has no dot,
    or has a bracket, is returned unchanged.
    """
    folder, slash, name = pattern.rpartition("/")
    if "." not in name or "[" in name:
        return pattern
    return folder + slash + "".join(f"[{c.lower()}{c.upper()}]" if c.isalpha() and c.isascii() else c for c in name)


def is_image(name: str) -> bool:
    """Return whether a name ends with one of IMAGE_SUFFIXES, in upper or lower case. The file is not read."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES

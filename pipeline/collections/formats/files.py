"""The folder of a collection: what it contains, and the only place where its files are opened."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from pipeline.collections.records import Options
from pipeline.errors import InputError, UsageError
from pipeline.plain_files import UnopenedFile, open_plain
from pipeline.remote import stores
from pipeline.remote.paths import Place, RemotePath, below, is_url
from pipeline.remote.stores import Version

IMAGE_SUFFIXES = frozenset(
    {
        ".jpg",
        ".jpeg",
        ".png",
        ".webp",
        ".gif",
        ".bmp",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".avif",
        ".jp2",
        ".heic",
        ".heif",
    }
)
LIST_SUFFIXES = (".txt", ".tsv", ".csv", ".json", ".jsonl", ".parquet", ".token", ".tar")
LARGEST_LIST = 8 << 30  # bytes of a list that is read line by line; what is read whole has a limit of its own


class CollectionFolder:
    """The folder `root` of a collection and the files that `options` name in it."""

    def __init__(self, root: Place, options: Options) -> None:
        self.root = root
        self._given, self._follow_links, self._scratch = options.files, options.follow_links, options.scratch
        self._begin()

    def _begin(self) -> None:
        """Raises UsageError where there is no collection."""
        if not self.root.is_dir():
            raise UsageError(f"{self.root} is not a folder; set data_root to that of your collection")

    def exists(self, path: Place) -> bool:
        if isinstance(path, Path):
            return path.exists()
        try:
            return stores.look(path) is not None
        except UnopenedFile:
            return False

    def is_dir(self, path: Place) -> bool:
        return isinstance(path, Path) and path.is_dir()

    def is_file(self, path: Place) -> bool:
        return path.is_file() if isinstance(path, Path) else not self.is_dir(path)

    def state(self, name: str) -> str:
        """What changes with the content of a file, without opening it."""
        if is_url(name):
            return str(stores.look(RemotePath(name)))
        try:
            status = os.stat(os.path.join(self.root, name))
        except (OSError, ValueError):
            return "unreadable"
        return f"{status.st_size} {status.st_mtime_ns}"

    def glob(self, pattern: str) -> list[Place]:
        """What is below the root under names of this pattern, sorted."""
        return sorted(self.root.glob(pattern))

    def locate(self, usual: Mapping[str, tuple[str, ...]]) -> dict[str, Place | None]:
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

    def _locate_one(self, key: str, usual: tuple[str, ...]) -> Place | None:
        given = self._given.get(key)
        if given is not None:
            path = below(self.root, given)
            if not self.exists(path):
                raise UsageError(f"{path} does not exist; correct collection.files.{key}")
            return path
        for pattern in usual:
            found = self.glob(pattern) if pattern != "." else [self.root]
            if len(found) > 1:
                names = ", ".join(path.name for path in found[:5])
                raise UsageError(f"{self.root} has several files {pattern} ({names}): set collection.files.{key}")
            if found:
                return found[0]
        return None

    def require(self, path: Place | None, key: str, usual: tuple[str, ...], remedy: str = "put it there") -> Path:
        """The `path` that `locate` found for `key`. Raises UsageError if it found none."""
        if path is None:
            raise self.lacks(" or ".join(usual), f"{remedy}, or name yours as collection.files.{key}")
        return path

    def lacks(self, what: str, remedy: str) -> UsageError:
        """The error for a folder that contains no `what`; it says what is there instead."""
        return UsageError(f"{self.root} holds {self._contents()} and no {what}: {remedy}")

    def _contents(self) -> str:
        """How many photographs and lists of each kind the folder contains, at any depth."""
        photographs, lists = self._count()
        found = [f"{count} {suffix}" for suffix, count in lists.items() if count]
        return ", ".join([f"{photographs or 'no'} photograph{'s' * (photographs != 1)}", *found])

    def only_photographs(self) -> bool:
        """Whether the folder contains photographs, and no list that could be about them."""
        photographs, lists = self._count()
        return bool(photographs) and not any(lists.values())

    def _count(self) -> tuple[int, dict[str, int]]:
        photographs, lists = 0, dict.fromkeys(LIST_SUFFIXES, 0)
        for _, names in self.walk():
            for name in names:
                photographs += is_image(name)
                suffix = os.path.splitext(name)[1].lower()
                if suffix in lists:
                    lists[suffix] += 1
        return photographs, lists

    def label(self, path: Place) -> str:
        """A file's name in rejects: relative to the root, with forward slashes."""
        if isinstance(path, RemotePath) or isinstance(self.root, RemotePath):
            return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)
        return Path(os.path.relpath(path, self.root)).as_posix()

    def image_prefix(self, folder: Place | None) -> str:
        """The prefix that makes names of images in `folder` (None: the root) relative to the root."""
        prefix = "" if folder is None else self.label(folder)
        if prefix.startswith(".."):
            raise UsageError(f"the images' folder {folder} lies outside {self.root}; set data_root to one above both")
        return "" if prefix == "." else prefix

    def walk(self, folder: Place | None = None) -> Iterator[tuple[str, list[str]]]:
        """Each folder under `folder` (None: the root), relative to it ("" for itself), with the names of its files,
        both sorted and without hidden ones. Raises InputError for a folder that cannot be read."""
        folder = folder or self.root

        def fail(error: OSError) -> None:
            raise InputError(f"{error.filename} cannot be read: {error.strerror}") from error

        for parent, folders, names in os.walk(folder, onerror=fail):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            below = os.path.relpath(parent, folder)
            yield "" if below == "." else below, sorted(name for name in names if not name.startswith("."))

    def open(self, path: Place, most_bytes: float = LARGEST_LIST) -> BinaryIO:
        """Open a list, text or shard for reading. Raises InputError unless it is a regular file of at most
        `most_bytes`, and, without collection.follow_links, if links lead out of the folder."""
        name = self.label(path)
        try:
            if isinstance(path, RemotePath):
                return self._open_remote(path, most_bytes)
            outside = name.startswith("../") or isinstance(self.root, RemotePath)
            if outside:  # only the user's own collection.files can name it
                return os.fdopen(open_plain(str(path.parent), path.name, most_bytes, True), "rb")
            return self.open_below(name, most_bytes)
        except UnopenedFile as error:
            raise InputError(f"{path} cannot be read: {error.detail}") from error

    def open_below(self, name: str, most_bytes: float) -> BinaryIO:
        """As `open`, for a name relative to the root; raises UnopenedFile, the reason to reject this file alone."""
        return os.fdopen(open_plain(os.fspath(self.root), name, most_bytes, self._follow_links), "rb")

    def version(self, path: RemotePath) -> Version | None:
        """What is known of an object before it is fetched."""
        return None

    def _open_remote(self, path: RemotePath, most_bytes: float) -> BinaryIO:
        """A copy of an object, which is fetched."""
        version = self.version(path) or stores.look(path)
        if version.size is not None and version.size > most_bytes:
            raise UnopenedFile("too-large", f"{version.size} bytes, more than {most_bytes:.0f}")
        return os.fdopen(self._scratch.open(path, version), "rb")


def is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES

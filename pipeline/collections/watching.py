"""What of a collection decides what `ingest` makes of it, as far as can be told without opening a file."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.collections.formats import NAMED
from pipeline.collections.formats.files import CollectionFolder, is_image
from pipeline.collections.records import Options
from pipeline.errors import UsageError

TEXT, SHARD = ".txt", ".tar"


def list_files(root: Path, form: str, given: Mapping[str, str]) -> list[Path]:
    """The lists that a collection of the format `form` is read from, wherever they lie; none for formats without.

    `given` is collection.files. Raises UsageError as the format's reader does.
    """
    if form not in NAMED:
        return []
    return [path for path in _folder(root, given).locate(NAMED[form]).values() if path and path.is_file()]


def describe_state(root: Path, form: str, given: Mapping[str, str]) -> str:
    """How many files a collection has, and a digest of their names, sizes and times of change.

    These are its photographs and lists, the texts beside photographs of `text-files`, and the shards of `webdataset`.
    Hidden files and folders are left out; links to folders are followed directly under the root only, as by `ingest`.
    Raises UsageError and InputError as the format's reader does.
    """
    names = {os.path.relpath(path, root) for path in list_files(root, form, given)}
    names |= {name for name in _walk(_folder(root, given)) if _is_read(name, form)}
    if form == "webdataset":
        names |= {str(path.relative_to(root)) for pattern in given.values() for path in _matching(root, pattern)}
    digest = hashlib.sha256()
    for name in sorted(names):
        try:
            status = os.stat(os.path.join(root, name))
            told = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:
            told = "unreadable"
        digest.update(os.fsencode(f"{name}\0{told}\0"))
    return f"{len(names)} files, {digest.hexdigest()[:16]}"


def _is_read(name: str, form: str) -> bool:
    suffix = os.path.splitext(name)[1].lower()
    if form == "webdataset":
        return suffix == SHARD
    return is_image(name) or (form == "text-files" and suffix == TEXT)


def _matching(root: Path, pattern: str) -> list[Path]:
    if Path(pattern).is_absolute():  # which pathlib refuses with an exception of its own
        raise UsageError(f"collection.files: {pattern} must be a pattern under {root}; leave out the folder")
    return list(root.glob(pattern))


def _folder(root: Path, given: Mapping[str, str]) -> CollectionFolder:
    return CollectionFolder(root, Options(given, {}, "train"))


def _walk(folder: CollectionFolder) -> Iterator[str]:
    """The files of the collection, relative to its root."""
    linked = [entry.name for entry in os.scandir(folder.root) if entry.is_symlink() and entry.is_dir()]
    for top in ("", *(name for name in linked if not name.startswith("."))):
        for below, names in folder.walk(folder.root / top):
            for name in names:
                yield os.path.join(top, below, name)

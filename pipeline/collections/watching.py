"""The state of a collection, as far as it is visible without opening files: a change makes `ingest` run again."""

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
    """The lists of a collection in the format `form`, wherever they are. `given` is collection.files.

    Raises UsageError as the format's reader does.
    """
    if form not in NAMED:
        return []
    return [path for path in _folder(root, given).locate(NAMED[form]).values() if path and path.is_file()]


def describe_state(root: Path, form: str, given: Mapping[str, str]) -> str:
    """The number of a collection's files, and a digest of their names, sizes and modification times.

    These are its photographs and lists, the texts of `text-files`, and the shards of `webdataset`, without hidden files
    and folders. As in `ingest`, links to folders are followed only directly under the root. Raises UsageError and
    InputError as the format's reader does.
    """
    names = {os.path.relpath(path, root) for path in list_files(root, form, given)}
    names |= {name for name in _walk(_folder(root, given)) if _is_read(name, form)}
    if form == "webdataset":
        names |= {str(path.relative_to(root)) for pattern in given.values() for path in _matching(root, pattern)}
    digest = hashlib.sha256()
    for name in sorted(names):
        try:
            status = os.stat(os.path.join(root, name))
            state = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:
            state = "unreadable"
        digest.update(os.fsencode(f"{name}\0{state}\0"))
    return f"{len(names)} files, {digest.hexdigest()[:16]}"


def _is_read(name: str, form: str) -> bool:
    suffix = os.path.splitext(name)[1].lower()
    if form == "webdataset":
        return suffix == SHARD
    return is_image(name) or (form == "text-files" and suffix == TEXT)


def _matching(root: Path, pattern: str) -> list[Path]:
    if Path(pattern).is_absolute():  # for which pathlib raises an exception of its own
        raise UsageError(f"collection.files: {pattern} must be a pattern under {root}; leave out the folder")
    return list(root.glob(pattern))


def _folder(root: Path, given: Mapping[str, str]) -> CollectionFolder:
    return CollectionFolder(root, Options(given, {}, "train"))


def _walk(folder: CollectionFolder) -> Iterator[str]:
    """The collection's files, relative to its root."""
    linked = [entry.name for entry in os.scandir(folder.root) if entry.is_symlink() and entry.is_dir()]
    for top in ("", *(name for name in linked if not name.startswith("."))):
        for below, names in folder.walk(folder.root / top):
            for name in names:
                yield os.path.join(top, below, name)

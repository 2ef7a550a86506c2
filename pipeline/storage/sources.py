"""Where the photographs lie: files under the data root, or members of tar shards read in place."""

import logging
import os
import stat
from pathlib import Path

from pipeline.errors import InputError

log = logging.getLogger(__name__)
LARGEST_FILE = 1 << 30
"""Bytes; no photograph is larger, and a worker's memory is not for whatever else it may be."""


class ImageSource:
    """Reads encoded images by the columns `path`, `offset` and `size` of a manifest's images. Travels by pickle."""

    def __init__(self, root: Path) -> None:
        self.root = os.fspath(root)

    def read(self, path: str, offset: int | None = None, size: int | None = None) -> bytes:
        """The bytes of the file `path` under the root, or `size` of them from `offset` (a member of a tar shard).

        Raises InputError where there is no such file, or its links lead out of the collection.
        """
        name = os.path.join(self.root, path)
        self._check_inside(path, name)
        try:
            with open(name, "rb", buffering=0, opener=_open_without_waiting) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise InputError("unreadable: not a regular file")
                size = status.st_size if size is None else size
                if size > LARGEST_FILE:
                    raise InputError(f"too-large: {size} bytes, more than {LARGEST_FILE}")
                data = os.pread(file.fileno(), size, offset or 0)
        except FileNotFoundError:
            raise InputError(f"missing: there is no file {path}") from None
        except OSError as error:
            raise InputError(f"unreadable: {error.strerror or error}") from error
        if len(data) < size:
            raise InputError(f"truncated: {path} ends before byte {(offset or 0) + size}")
        return data

    def _check_inside(self, path: str, name: str) -> None:
        """A folder directly under the root may be a link to elsewhere; nothing below it may lead out of it."""
        top, _, below = path.partition("/")
        base = os.path.realpath(os.path.join(self.root, top) if below else self.root)
        if ".." in path.split("/") or os.path.commonpath([base, os.path.realpath(name)]) != base:
            raise InputError("outside: the name leads out of the collection; copy the image into it")


def find_photographs(root: Path, data_root: Path) -> Path:
    """Where the photographs of a manifest are: its `root`, or `data_root` of the configuration where the collection was
    moved since `ingest`; which of the two is logged where it is not the first."""
    if os.path.isdir(root):
        return Path(root)
    if os.path.isdir(data_root):
        log.warning("%s is not there any more; photographs are looked for in data_root, %s", root, data_root)
        return Path(data_root)
    log.warning("%s is not there, nor data_root, %s; set data_root to where the photographs are", root, data_root)
    return Path(root)


def _open_without_waiting(path: str, flags: int) -> int:
    # Opening a named pipe would wait for a writer for ever.
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def read_list(path: Path, key: str) -> str:
    """The text of a list that the configuration names under `key`. Raises InputError where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path} ({error}); put the list there or change {key}") from error

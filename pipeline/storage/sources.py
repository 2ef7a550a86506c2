"""Where the photographs are: files under the data root, or members of tar shards read in place."""

import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import InputError
from pipeline.plain_files import open_plain

log = logging.getLogger(__name__)
ROOT = "merged_root"
"""Column of a bundle's images that lie in another folder than its `data_root`: in which of its `more_roots`, from 1."""
LARGEST_FILE = 1 << 30  # bytes; no photograph is larger


class ImageSource:
    """Reads encoded images by the columns `path`, `offset` and `size` of a manifest's images. Can be pickled."""

    def __init__(self, root: Path, follow_links: bool = False) -> None:
        self.root = os.fspath(root)
        self.follow_links = follow_links

    def read(self, path: str, offset: int | None = None, size: int | None = None) -> bytes:
        """The bytes of the file `path` under the root, or `size` of them from `offset` (a member of a tar shard).

        Raises InputError if there is no such file, or its links lead out of the collection.
        """
        descriptor = open_plain(self.root, path, LARGEST_FILE if size is None else math.inf, self.follow_links)
        try:
            size = os.fstat(descriptor).st_size if size is None else size
            if size > LARGEST_FILE:
                raise InputError(f"too-large: {size} bytes, more than {LARGEST_FILE}")
            data = os.pread(descriptor, size, offset or 0)
        except OSError as error:
            raise InputError(f"unreadable: {error.strerror or error}") from error
        finally:
            os.close(descriptor)
        if len(data) < size:
            raise InputError(f"truncated: {path} ends before byte {(offset or 0) + size}")
        return data


class ImageSources:
    """The photographs of a bundle: those of `root`, and, where others were joined with them, of `more` folders."""

    def __init__(self, root: Path, more: Sequence[str] = (), follow_links: bool = False) -> None:
        self._sources = [ImageSource(one, follow_links) for one in (root, *map(Path, more))]

    def read(self, row: Mapping[str, Any]) -> bytes:
        """The bytes of a row of the bundle's table. Raises InputError as ImageSource.read."""
        number = row.get(ROOT) or 0
        if number not in range(len(self._sources)):
            raise InputError(f"missing: the card names no folder {number}")
        return self._sources[number].read(row["path"], row.get("offset"), row.get("size"))


def find_photographs(root: Path, data_root: Path) -> Path:
    """Where a manifest's photographs are: its `root`, or the configuration's `data_root` if the collection was moved
    since `ingest`; logs a warning in that case."""
    if os.path.isdir(root):
        return Path(root)
    if os.path.isdir(data_root):
        log.warning("%s no longer exists; photographs are looked for in data_root, %s", root, data_root)
        return Path(data_root)
    log.warning("neither %s nor data_root, %s, exists; set data_root to where the photographs are", root, data_root)
    return Path(root)


def read_list(path: Path, key: str) -> str:
    """The text of a list that the configuration's `key` names. Raises InputError if it cannot be read."""
    try:
        folder, name = os.path.split(path)
        with open(open_plain(folder, name, LARGEST_FILE, True), encoding="utf-8") as file:
            return file.read()
    except (InputError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path} ({error}); put the list there or change {key}") from error

"""Where the photographs are: files under the data root, or members of tar shards read in place."""

import logging
import math
import os
from pathlib import Path

from pipeline.errors import InputError
from pipeline.plain_files import open_plain

log = logging.getLogger(__name__)
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

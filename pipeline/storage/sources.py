"""Where the photographs are: files under the data root, or members of tar shards and rows of Parquet files read in
place."""

import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.errors import InputError
from pipeline.parquet_photographs import ParquetPhotographs
from pipeline.plain_files import open_plain
from pipeline.remote import stores
from pipeline.remote.paths import Place
from pipeline.remote.scratch import Scratch
from pipeline.remote.stores import Version

log = logging.getLogger(__name__)
BUNDLE = "bundle"
"""Column of the rows of several bundles: in which of them a row is, from 0."""
LARGEST_FILE = 1 << 30  # bytes; no photograph is larger


class ImageSource:
    """Reads encoded images by the columns `path`, `offset` and `size` of a manifest's images. Can be pickled.

    Tar shards at a URL are fetched whole into `scratch`, and must have the size and sha256 that `objects` has for their
    paths; without a scratch, a member is read by its range.
    """

    def __init__(
        self,
        root: Place,
        follow_links: bool = False,
        scratch: Scratch | None = None,
        objects: Mapping[str, tuple[int, str]] = MappingProxyType({}),
    ) -> None:
        self.root, self.follow_links, self.scratch, self.objects = root, follow_links, scratch, dict(objects)
        self._open: tuple[str, int] = ("", -1)
        self._rows = ParquetPhotographs()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_open", "_rows")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _open=("", -1), _rows=ParquetPhotographs())

    def read(self, path: str, offset: int | None = None, size: int | None = None) -> bytes:
        """The bytes of the file `path` under the root, or `size` of them from `offset` (a member of a tar shard), or,
        without a size, what is in the row `offset` of a Parquet file.

        Raises InputError if there is no such file, or its links lead out of the collection, and UnreachableError where
        it is remote and its server does not give it.
        """
        if not isinstance(self.root, Path):
            return self._read_remote(path, offset, size)
        descriptor = open_plain(str(self.root), path, LARGEST_FILE if offset is None else math.inf, self.follow_links)
        try:
            return self._read(descriptor, path, offset, size)
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int, path: str, offset: int | None, size: int | None) -> bytes:
        if offset is not None and size is None:
            return self._rows.read(descriptor, offset)
        try:
            size = os.fstat(descriptor).st_size if size is None else size
            if size > LARGEST_FILE:
                raise InputError(f"too-large: {size} bytes, more than {LARGEST_FILE}")
            data = os.pread(descriptor, size, offset or 0)
        except OSError as error:
            raise InputError(f"unreadable: {error.strerror or error}") from error
        if len(data) < size:
            raise InputError(f"truncated: {path} ends before byte {(offset or 0) + size}")
        return data

    def _read_remote(self, path: str, offset: int | None, size: int | None) -> bytes:
        if path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise InputError("outside: its name leads out of the collection")
        address = self.root / path
        if offset is not None and size is None and self.scratch is None:
            raise InputError("unreadable: a row of a Parquet file at a URL is read only where a job has a scratch")
        if offset is None or self.scratch is None:
            return stores.read(address, offset, size, LARGEST_FILE)
        if self._open[0] != path:  # the one before stays open until this one is there
            known, digest = self.objects.get(path, (None, None))
            descriptor = self.scratch.open(address, None if known is None else Version(known, ""), digest)
            if self._open[0]:
                os.close(self._open[1])
            self._open = path, descriptor
        return self._read(self._open[1], path, offset, size)


class ImageSources:
    """The photographs of one or several bundles, those of each in the place of `roots` with its number. Of URLs, only
    the one that a command has `named` is asked."""

    def __init__(self, roots: Sequence[Place], follow_links: bool = False, named: Place | None = None) -> None:
        self._sources = [
            ImageSource(root, follow_links) if isinstance(root, Path) or root == named else None for root in roots
        ]

    def read(self, row: Mapping[str, Any]) -> bytes:
        """The bytes of a row of the table. Raises InputError as ImageSource.read."""
        source = self._sources[row[BUNDLE] if len(self._sources) > 1 else 0]
        if source is None:
            raise InputError("missing: the card names a URL, which is asked only if the command does (--images)")
        return source.read(row["path"], row.get("offset"), row.get("size"))


def find_photographs(root: Place, data_root: Place) -> Place:
    """Where a manifest's photographs are: its `root`, or the configuration's `data_root` if the collection was moved
    since `ingest`; logs a warning in that case."""
    if not isinstance(root, Path) or os.path.isdir(root):
        return root
    if not isinstance(data_root, Path) or os.path.isdir(data_root):
        log.warning("%s no longer exists; photographs are looked for in data_root, %s", root, data_root)
        return data_root
    log.warning("neither %s nor data_root, %s, exists; set data_root to where the photographs are", root, data_root)
    return root

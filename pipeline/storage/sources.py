"""Where the photographs are: files under the data root, or members of tar shards and rows of Parquet files read in
place."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import InputError
from pipeline.foreign.files import open_plain
from pipeline.foreign.parquet import ParquetPhotographs
from pipeline.storage.tables import SHARD, Row

LARGEST_FILE = 1 << 30  # bytes; no photograph is larger


class ImageSource:
    """Reads encoded images below the folder `root` by the columns `path`, `offset` and `size` of a manifest's images.
    Can be pickled."""

    def __init__(self, root: Path, follow_links: bool = False) -> None:
        self.root, self.follow_links = root, follow_links
        self._rows = ParquetPhotographs()

    def __reduce__(self) -> tuple:
        return ImageSource, (self.root, self.follow_links)

    def read(self, path: str, offset: int | None = None, size: int | None = None) -> bytes:
        """The bytes of the file `path` under the root, or `size` of them from `offset` (a member of a tar shard), or,
        without a size, what is in the row `offset` of a Parquet file.

        Raises InputError if there is no such file, or its links lead out of the collection.
        """
        descriptor = open_plain(str(self.root), path, LARGEST_FILE if offset is None else math.inf, self.follow_links)
        try:
            if offset is not None and size is None:
                return self._rows.read(descriptor, offset)
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
    """The photos of the shards of an index. The photos of shard i are in the folder `roots[i]`."""

    def __init__(self, roots: Sequence[Path], follow_links: bool = False) -> None:
        self._sources = [ImageSource(root, follow_links) for root in roots]

    def read(self, row: Row) -> bytes:
        """Read the photo of a row of the table. Raises InputError as ImageSource.read."""
        source = self._sources[row[SHARD] if len(self._sources) > 1 else 0]
        return source.read(row["path"], row.get("offset"), row.get("size"))

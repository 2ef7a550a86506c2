"""Reading the encoded photos of a run or an index: files, members of tar shards, and rows of Parquet files."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import InputError
from pipeline.foreign.files import open_plain
from pipeline.foreign.parquet import ParquetPhotographs
from pipeline.storage.tables import SHARD, Row

MAX_PHOTO_BYTES = 1 << 30
"""Size in bytes of the largest photo that is read from a file or from a tar shard. A larger photo raises InputError. A
photo in a row of a Parquet file may be larger."""


class ImageSource:
    """Reader of encoded images below the folder `root`, which finds an image by the columns `path`, `offset` and `size`
    of the manifest. It can be pickled.

    `follow_links` says whether symbolic links may lead out of `root`, or out of a folder directly under `root` (see
    `open_plain`).
    """

    def __init__(self, root: Path, follow_links: bool = False) -> None:
        self.root = root
        self.follow_links = follow_links
        self._rows = ParquetPhotographs()

    def __reduce__(self) -> tuple:
        return ImageSource, (self.root, self.follow_links)

    def read(self, path: str, offset: int | None = None, size: int | None = None) -> bytes:
        """Read the bytes of an encoded image.

        Without `offset`, the image is the whole file `path` below the root. With `offset` and `size`, both in bytes, it
        is a member of the tar shard `path`. With `offset` only, it is the row `offset` of the Parquet file `path`.
        Raises InputError if the file cannot be read, is not a regular file or is truncated, or if a file or member is
        larger than MAX_PHOTO_BYTES. Raises InputError too for a link that is followed only if `follow_links` is true.
        """
        most = MAX_PHOTO_BYTES if offset is None else math.inf
        descriptor = open_plain(str(self.root), path, most, self.follow_links)
        try:
            if offset is not None and size is None:
                return self._rows.read(descriptor, offset)
            size = os.fstat(descriptor).st_size if size is None else size
            if size > MAX_PHOTO_BYTES:
                raise InputError(
                    f"too-large: the photo has {size} bytes, but only {MAX_PHOTO_BYTES} are allowed. Make the photo"
                    " smaller, or exclude it"
                )
            data = os.pread(descriptor, size, offset or 0)
        except OSError as error:
            raise InputError(
                f"unreadable: {path} cannot be read ({error.strerror or error}). Copy the file again, or exclude it"
            ) from error
        finally:
            os.close(descriptor)
        if len(data) < size:
            raise InputError(
                f"truncated: {path} ends before byte {(offset or 0) + size}. Copy the file again, or exclude it"
            )
        return data


class ImageSources:
    """Reader of the photos of an index. The photos of the shard i are in the folder `roots[i]`.

    `follow_links` has the meaning that it has for ImageSource.
    """

    def __init__(self, roots: Sequence[Path], follow_links: bool = False) -> None:
        self._sources = [ImageSource(root, follow_links) for root in roots]

    def read(self, row: Row) -> bytes:
        """Read the photo of a row of the index's table. Raises InputError if it cannot be read."""
        source = self._sources[row[SHARD] if len(self._sources) > 1 else 0]
        return source.read(row["path"], row.get("offset"), row.get("size"))

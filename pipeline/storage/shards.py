"""HDF5 shards: files with contiguous numeric arrays, which are published atomically and read through a memory map.

A shard is one file with a few plain numeric datasets, whose first axis is the rows. HDF5's chunks and compression are
not used, because reading scattered rows of a contiguous dataset is 400 times faster. Variable-length strings are not
used either, because names and texts are stored in Parquet files.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar, Unpack, overload

import h5py
import numpy as np

from pipeline.compute.precision import require_finite
from pipeline.errors import IntegrityError
from pipeline.foreign.named_arrays import plain_dataset
from pipeline.storage.commit import About, Commit, open_commit, publish
from pipeline.storage.files import REMEDY

FEATURES = "features"
REGIONS = "regions"
VECTORS = "text-vectors"
TOKENS = "tokens"
PARSES = "parses"
TREES = "trees"
EMBEDDINGS = "embeddings"
FRAGMENTS = "fragments"
MOMENTS = "moments"
MAX_OPEN_SHARDS = 256
"""Maximum number of items that one OpenedOnUse keeps open. The kernel allows a process some 65,000 memory maps."""


def shard_path(folder: Path, number: int) -> Path:
    """Return the path of the shard `number` in a folder."""
    return Path(folder) / f"shard-{number:05d}.h5"


def chunk_path(folder: Path, number: int) -> Path:
    """Return the path of the file of the chunk `number`, which is a range of shards, in a folder."""
    return Path(folder) / f"chunk-{number:05d}.h5"


def write_shard(path: Path, kind: str, arrays: Mapping[str, np.ndarray], rows: int, **about: Unpack[About]) -> Commit:
    """Write `arrays`, given by name, as one shard of `kind` with its commit record.

    `path` is the file of the shard. `rows` is the number of rows that the record notes, and `about` may have the
    provenance, the details, and the batch that publishes the file. Raises IntegrityError that names the dataset and the
    row if a value is NaN or infinite.
    """
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver="v110") as file:
        for name, array in arrays.items():
            require_finite(path, name, array)
            file.create_dataset(name, data=array, track_times=False)
    return publish(path, buffer.getbuffer(), kind=kind, rows=rows, **about)


class Shard:
    """A published shard of a `kind`, open for reading. `shard["features"]` is a memory map of the dataset.

    The sha256 of the file is checked before HDF5 reads it. Raises IntegrityError if the file is damaged or of another
    kind, and if a dataset is not contiguous or would read other files (external or virtual storage, links).
    """

    def __init__(self, path: Path, kind: str) -> None:
        self.path = Path(path)
        self.commit = open_commit(self.path, kind)
        self.rows = self.commit.rows
        self.details = self.commit.details
        try:
            with h5py.File(self.path, "r") as file:
                names = list(map(str, file))
                self._arrays = {name: _map_dataset(self.path, name, plain_dataset(file, name)) for name in names}
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError) as error:
            raise IntegrityError(f"{path} is not a readable HDF5 file ({error}). {REMEDY}") from error

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            known = ", ".join(sorted(self._arrays))
            raise IntegrityError(f"{self.path} has no dataset {name}. The file has {known}. {REMEDY}")
        return self._arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self._arrays


T = TypeVar("T")


class OpenedOnUse(Sequence[T]):
    """A sequence whose items are opened when they are first used.

    `open(number)` opens an item, and `count` is the length of the sequence. The MAX_OPEN_SHARDS items that were used
    last stay open. A number below 0 or above `count` - 1 raises IndexError.
    """

    def __init__(self, count: int, open: Callable[[int], T]) -> None:
        self._count = count
        self._open = lru_cache(MAX_OPEN_SHARDS)(open)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> T: ...

    @overload
    def __getitem__(self, number: slice) -> list[T]: ...

    def __getitem__(self, number: int | slice) -> T | list[T]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(self._count))]
        if not 0 <= number < self._count:
            raise IndexError(
                f"There are {self._count} shards, counted from 0, but the shard {number} was requested. Request an"
                " existing shard."
            )
        return self._open(number)


def _map_dataset(path: Path, name: str, dataset: h5py.Dataset | None) -> np.ndarray:
    if dataset is None or dataset.shape is None or dataset.dtype.kind not in "fiub":
        raise ValueError(f"{name} is not a dataset of numbers inside the file")
    if dataset.size == 0:
        return np.empty(dataset.shape, dataset.dtype)
    offset = dataset.id.get_offset()
    if offset is None:
        raise ValueError(f"the dataset {name} is stored in pieces, which is not supported")
    # The mode is copy-on-write: the file never changes, and torch accepts the array without a warning. HDF5 or the
    # memory map refuses a dataset whose declared size exceeds the file.
    return np.memmap(path, dataset.dtype, "c", offset, dataset.shape)

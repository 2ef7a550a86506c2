"""HDF5 shards: contiguous datasets, written in memory, published atomically, read through a memory map.

A shard is one file of a few plain numeric datasets whose first axis is the rows. Chunked or compressed layouts and
variable-length strings are left out on purpose: gathering from a contiguous dataset is 400 times faster, and names and
text live in Parquet.
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

FEATURES, REGIONS = "features", "regions"
VECTORS, TOKENS, PARSES, TREES = "text-vectors", "tokens", "parses", "trees"
EMBEDDINGS, FRAGMENTS = "embeddings", "fragments"
MOMENTS = "moments"
KEPT_OPEN = 256
"""Files whose memory maps a sequence of shards keeps: a process may have some 65,000."""


def shard_path(folder: Path, number: int) -> Path:
    return Path(folder) / f"shard-{number:05d}.h5"


def chunk_path(folder: Path, number: int) -> Path:
    """Return the file that covers a chunk of shards."""
    return Path(folder) / f"chunk-{number:05d}.h5"


def write_shard(path: Path, kind: str, arrays: Mapping[str, np.ndarray], rows: int, **about: Unpack[About]) -> Commit:
    """Publish `arrays` (name -> array) as one shard of `rows` rows.

    Raises IntegrityError naming the dataset and row of a value that is NaN or infinite.
    """
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver="v110") as file:
        for name, array in arrays.items():
            require_finite(path, name, array)
            file.create_dataset(name, data=array, track_times=False)
    return publish(path, buffer.getbuffer(), kind=kind, rows=rows, **about)


class Shard:
    """A published shard, open for reading: `shard["features"]` is a memory map, `shard.commit` its commit.

    The sha256 is checked before HDF5 sees a byte. Raises IntegrityError for a damaged file, and for datasets that would
    read other files (external or virtual storage, links) or are not contiguous.
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
            raise IntegrityError(f"{path} is not a readable HDF5 file ({error}); run its stage again") from error

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            raise IntegrityError(f"{self.path} has no dataset {name} (it has {', '.join(sorted(self._arrays))})")
        return self._arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self._arrays


T = TypeVar("T")


class OpenedOnUse(Sequence[T]):
    """`count` things. `open(number)` opens a thing when it is first used, and the last KEPT_OPEN stay open."""

    def __init__(self, count: int, open: Callable[[int], T]) -> None:
        self._count = count
        self._open = lru_cache(KEPT_OPEN)(open)

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
            raise IndexError(number)
        return self._open(number)


def _map_dataset(path: Path, name: str, dataset: h5py.Dataset | None) -> np.ndarray:
    if dataset is None or dataset.shape is None or dataset.dtype.kind not in "fiub":
        raise ValueError(f"{name} holds something else than numbers")
    if dataset.size == 0:
        return np.empty(dataset.shape, dataset.dtype)
    offset = dataset.id.get_offset()
    if offset is None:
        raise ValueError(f"{name} is not contiguous")
    # Copy-on-write: nothing reaches the file, and torch takes the array without complaint. A dataset that claims more
    # than the file holds is refused by HDF5, or else by the map.
    return np.memmap(path, dataset.dtype, "c", offset, dataset.shape)

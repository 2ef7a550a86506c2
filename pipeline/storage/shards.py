"""HDF5 shards: contiguous datasets, written in memory, published atomically, read through a memory map.

A shard is one file of a few plain numeric datasets whose first axis is the rows. Chunked or compressed layouts and
variable-length strings are left out on purpose: gathering from a contiguous dataset is 400 times faster, and names and
text live in Parquet.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pipeline.errors import IntegrityError
from pipeline.precision import require_finite
from pipeline.storage.commit import Commit, open_commit, publish

FEATURES, REGIONS = "features", "regions"
VECTORS, TOKENS, PARSES, TREES = "text-vectors", "tokens", "parses", "trees"
EMBEDDINGS, FRAGMENTS = "embeddings", "fragments"
MOMENTS = "moments"
KEPT_OPEN = 256
"""Files whose memory maps a sequence of shards keeps: a process may have some 65,000."""


def shard_path(folder: Path, number: int) -> Path:
    return Path(folder) / f"shard-{number:05d}.h5"


def write_shard(path: Path, kind: str, arrays: Mapping[str, np.ndarray], **about: Any) -> Commit:
    """Publish `arrays` (name -> array) as one shard; `about` has the `rows`, `provenance` and `details` of `publish`.

    Raises IntegrityError naming the dataset and row of a value that is NaN or infinite.
    """
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver="v110") as file:
        for name, array in arrays.items():
            require_finite(path, name, array)
            file.create_dataset(name, data=array, track_times=False)
    return publish(path, buffer.getbuffer(), kind=kind, **about)


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
                self._arrays = {name: _map_dataset(self.path, name, plain_dataset(file, name)) for name in file}
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError) as error:
            raise IntegrityError(f"{path} is not a readable HDF5 file ({error}); run its stage again") from error

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            raise IntegrityError(f"{self.path} has no dataset {name} (it has {', '.join(sorted(self._arrays))})")
        return self._arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self._arrays


class OpenedOnUse(Sequence):
    """`count` things, of which `open(number)` opens one when it is first used; the last KEPT_OPEN stay open."""

    def __init__(self, count: int, open: Callable[[int], Any]) -> None:
        self._count, self._open = count, lru_cache(KEPT_OPEN)(open)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < self._count:
            raise IndexError(number)
        return self._open(number)


def plain_dataset(file: h5py.File, name: str) -> h5py.Dataset | None:
    """The dataset `name` of an open file; None for a group. Raises ValueError for one that would read other files."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):  # nothing that it leads to is opened
        raise ValueError(f"{name} is a link")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        return None
    if dataset.external or dataset.is_virtual:
        raise ValueError(f"{name} reads other files")
    return dataset


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


class ChosenRows:
    """Some rows (n, ...) of an array, not yet read: those at `places` (n,)."""

    def __init__(self, array: "np.ndarray | Chained", places: np.ndarray) -> None:
        self._array = array
        self._places = places
        self.shape = (len(places), *array.shape[1:])

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        return self._array[self._places[rows]]


class Chained:
    """At least one array (n_k, ...), concatenated without being read. `chained[rows]` gathers some of the n rows as
    `dtype` (None: the first array's). `bounds` are the numbers of the first rows of the arrays, and n (None: by the
    lengths of the arrays, for which all are opened)."""

    def __init__(
        self, parts: Sequence[np.ndarray], dtype: type | None = None, bounds: Sequence[int] | None = None
    ) -> None:
        self.parts, self.bounds = parts, np.asarray(bounds if bounds is not None else np.cumsum([0, *map(len, parts)]))
        self.shape, self.dtype = (int(self.bounds[-1]), *parts[0].shape[1:]), np.dtype(dtype or parts[0].dtype)

    def __getitem__(self, rows: np.ndarray | Sequence[int] | slice) -> np.ndarray:
        """Gather `rows`: whole numbers (k,) from 0 to n - 1 in any order, a mask (n,), or a slice.

        Raises IndexError for any others. A negative number does not count from the end.
        """
        count = self.shape[0]
        rows = np.arange(*rows.indices(count)) if isinstance(rows, slice) else np.asarray(rows)
        if rows.dtype == bool and rows.shape == (count,):
            rows = np.flatnonzero(rows)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise IndexError(f"rows are chosen by whole numbers (k,), a mask ({count},) or a slice, not by {rows!r}")
        rows = rows.astype(np.int64)  # unsigned numbers have no negative differences
        order = np.argsort(rows, kind="stable") if (np.diff(rows) < 0).any() else None
        rows = rows if order is None else rows[order]
        if rows.size and not 0 <= rows[0] <= rows[-1] < count:
            raise IndexError(f"there are {count} rows, from 0; rows {rows[0]} to {rows[-1]} were asked for")
        gathered = np.empty((len(rows), *self.shape[1:]), self.dtype)
        cuts = np.searchsorted(rows, self.bounds)
        for number in np.flatnonzero(np.diff(cuts)).tolist():
            own = slice(cuts[number], cuts[number + 1])
            gathered[own if order is None else order[own]] = self.parts[number][rows[own] - self.bounds[number]]
        return gathered

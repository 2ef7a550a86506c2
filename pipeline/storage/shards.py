"""HDF5 shards: contiguous datasets, written in memory, published atomically, read through a memory map.

One shard is one file of a few plain numeric datasets whose first axis is the rows. Chunked or compressed
layouts and variable-length strings are left out on purpose: a contiguous dataset is gathered from 400
times faster, and names and text live in Parquet.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pipeline.errors import IntegrityError
from pipeline.precision import require_finite
from pipeline.storage.atomic import Sidecar, publish, verify

FEATURES = "features"
EMBEDDINGS = "embeddings"
TFIDF = "tfidf"
MOMENTS = "moments"
NEIGHBOURS = "neighbours"


def write_shard(
    path: Path,
    kind: str,
    arrays: Mapping[str, np.ndarray],
    *,
    rows: int,
    fingerprint: str,
    details: Mapping[str, Any] | None = None,
) -> Sidecar:
    """Publish `arrays` (name -> array) as one shard of `kind`.

    Raises IntegrityError naming the dataset and row when a float array holds NaN or infinity.
    """
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver="v110") as file:
        for name, array in arrays.items():
            require_finite(path, name, array)
            file.create_dataset(name, data=array, track_times=False)
    return publish(path, buffer.getbuffer(), kind=kind, rows=rows, fingerprint=fingerprint, details=details)


class Shard:
    """A published shard, open for reading: `shard["features"]` is a memory map, `shard.sidecar` its commit.

    The sha256 is checked before HDF5 sees a byte. Raises IntegrityError for a damaged file, and for datasets
    that would read other files (external or virtual storage, links) or are not contiguous.
    """

    def __init__(self, path: Path, kind: str) -> None:
        self.path = Path(path)
        self.sidecar = verify(self.path, kind)
        self._arrays = _map_datasets(self.path)

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self._arrays[name]
        except KeyError:
            raise IntegrityError(
                f"{self.path} has no dataset {name} (it has {', '.join(sorted(self._arrays))})"
            ) from None

    def get(self, name: str) -> np.ndarray | None:
        """The dataset `name`, None where there is none."""
        return self._arrays.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    @property
    def rows(self) -> int:
        return self.sidecar.rows

    @property
    def fingerprint(self) -> str:
        return self.sidecar.fingerprint

    @property
    def details(self) -> Mapping[str, Any]:
        return self.sidecar.details


def _map_datasets(path: Path) -> dict[str, np.ndarray]:
    try:
        return _map_all(path)
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError) as error:
        raise IntegrityError(f"{path} is not a readable HDF5 file ({error}); run its stage again") from error


def _map_all(path: Path) -> dict[str, np.ndarray]:
    arrays = {}
    with h5py.File(path, "r") as file:
        for name in file:
            if not isinstance(file.get(name, getlink=True), h5py.HardLink) or not isinstance(file[name], h5py.Dataset):
                raise IntegrityError(f"{path}: {name} is a link or a group; shards hold plain datasets only")
            dataset = file[name]
            if dataset.external or dataset.is_virtual:
                raise IntegrityError(f"{path}: {name} reads other files; shards hold their own data only")
            arrays[name] = _map_dataset(path, dataset)
    return arrays


def _map_dataset(path: Path, dataset: h5py.Dataset) -> np.ndarray:
    if dataset.shape is None or dataset.dtype.kind not in "fiub":
        raise IntegrityError(f"{path}: {dataset.name} is of type {dataset.dtype}; shards hold numbers only")
    if dataset.size == 0:
        return np.empty(dataset.shape, dataset.dtype)
    offset = dataset.id.get_offset()
    if offset is None:
        raise IntegrityError(f"{path}: {dataset.name} is not contiguous; write shards with this project's writer")
    if offset + dataset.size * dataset.dtype.itemsize > path.stat().st_size:
        raise IntegrityError(f"{path}: {dataset.name} claims {dataset.shape}, more than the file holds")
    # Copy-on-write: nothing reaches the file, and torch takes the array without complaint.
    return np.memmap(path, dataset.dtype, "c", offset, dataset.shape)

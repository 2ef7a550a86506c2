"""Matrices and lists of strings in `.npz`, `.safetensors`, `.pt` and HDF5 files, by their names. No pickle is run."""

import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from pipeline.compute.precision import to_numpy
from pipeline.errors import InputError

if TYPE_CHECKING:
    import torch

ONLY_TENSOR = "features"
"""Name of the only tensor in a file without names."""


@dataclass(frozen=True)
class NamedArrays:
    """Arrays (n, d) of floats by name, and lists of n strings by name."""

    matrices: Mapping[str, np.ndarray]
    strings: Mapping[str, list[str]]


def read_npz(path: Path) -> NamedArrays:
    """Read every array of an `.npz`. Raises ValueError for a pickle."""
    with np.load(path, allow_pickle=False) as file:
        return _select({name: file[name] for name in file.files})


def npz_bytes(path: Path) -> int:
    """Return the unpacked size of the arrays of an `.npz`, according to its directory."""
    with zipfile.ZipFile(path) as file:
        return sum(member.file_size for member in file.infolist())


def read_safetensors(path: Path) -> NamedArrays:
    """Read every tensor. bfloat16, which NumPy does not know, becomes float32."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return _select({name: to_numpy(file.get_tensor(name)) for name in file.keys()})  # noqa: SIM118


def read_torch(path: Path) -> NamedArrays:
    """Read a tensor, or a dictionary of tensors and of lists of strings, that torch.save wrote. Raises InputError for
    any other pickled object."""
    import torch

    try:
        stored = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:  # its message advises to let the file run code
        raise InputError(
            f"cannot read features from {path}: it is damaged, or has more than tensors and lists of strings;"
            " torch.save these alone"
        ) from error
    return _select(stored if isinstance(stored, Mapping) else {ONLY_TENSOR: stored})


def plain_dataset(file: h5py.File, name: str) -> h5py.Dataset | None:
    """Return the dataset `name` of an open HDF5 file, or None for a group.

    Raises ValueError for a dataset that would read other files.
    """
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):  # the target of a link is not opened
        raise ValueError(f"{name} is a link")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        return None
    if dataset.external or dataset.is_virtual:
        raise ValueError(f"{name} reads other files")
    return dataset


READERS: Mapping[str, Callable[[Path], NamedArrays]] = {
    ".npz": read_npz,
    ".safetensors": read_safetensors,
    ".pt": read_torch,
    ".pth": read_torch,
}


def _select(values: "Mapping[str, np.ndarray | torch.Tensor | list[str]]") -> NamedArrays:
    """Select the matrices of floats and the lists of strings among the `values`."""
    matrices: dict[str, np.ndarray] = {}
    strings: dict[str, list[str]] = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "SU" and value.ndim == 1:
            strings[name] = (value if value.dtype.kind == "U" else np.char.decode(value, "utf-8")).tolist()
        elif isinstance(value, list | tuple):
            if all(isinstance(text, str) for text in value):
                strings[name] = list(value)
        elif hasattr(value, "shape") and (array := to_numpy(value)).ndim == 2 and array.dtype.kind == "f":
            matrices[name] = array
    return NamedArrays(matrices, strings)

"""Reads matrices and lists of strings, by name, from .npz, .safetensors, .pt and HDF5 files. Pickled code is never
run."""

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
"""The name for the tensor in a file that has a single tensor without a name."""


@dataclass(frozen=True)
class NamedArrays:
    """The contents of a file: `matrices` has arrays (n, d) of floats by name, and `strings` has lists of n strings by
    name."""

    matrices: Mapping[str, np.ndarray]
    strings: Mapping[str, list[str]]


def read_npz(path: Path) -> NamedArrays:
    """Read the matrices of floating-point numbers and the lists of strings in an .npz file. Raises ValueError if the
    file has pickled objects."""
    with np.load(path, allow_pickle=False) as file:
        return _select_arrays({name: file[name] for name in file.files})


def npz_bytes(path: Path) -> int:
    """Return the number of bytes of the unpacked arrays of an .npz file, according to its directory."""
    with zipfile.ZipFile(path) as file:
        return sum(member.file_size for member in file.infolist())


def read_safetensors(path: Path) -> NamedArrays:
    """Read the matrices of floating-point numbers in a safetensors file. bfloat16 is converted to float32, since NumPy
    does not have it."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return _select_arrays({name: to_numpy(file.get_tensor(name)) for name in file.keys()})  # noqa: SIM118


def read_torch(path: Path) -> NamedArrays:
    """Read a file that torch.save wrote: a tensor, or a dictionary of tensors and of lists of strings.

    Raises InputError for any other pickled object.
    """
    import torch

    try:
        stored = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except (pickle.UnpicklingError, RuntimeError) as error:  # The message of torch advises to let the file run code.
        raise InputError(
            f"jointspace cannot read features from {path}, because the file is damaged, or has other objects than"
            " tensors and lists of strings. Save only tensors and lists of strings with torch.save."
        ) from error
    return _select_arrays(stored if isinstance(stored, Mapping) else {ONLY_TENSOR: stored})


def plain_dataset(file: h5py.File, name: str) -> h5py.Dataset | None:
    """Return the dataset `name` of an open HDF5 file, or None for a group.

    Raises ValueError for a link, for a dataset that would read other files, and for a name that the file does not have.
    """
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):  # the target of a link is not opened
        raise ValueError(f"the dataset {name} is a link, which is not followed")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        return None
    if dataset.external or dataset.is_virtual:
        raise ValueError(f"the dataset {name} reads other files, which is not allowed")
    return dataset


READERS: Mapping[str, Callable[[Path], NamedArrays]] = {
    ".npz": read_npz,
    ".safetensors": read_safetensors,
    ".pt": read_torch,
    ".pth": read_torch,
}
"""The readers of files of arrays, by suffix."""


def _select_arrays(values: "Mapping[str, np.ndarray | torch.Tensor | list[str]]") -> NamedArrays:
    """Return the matrices of floating-point numbers and the lists of strings among the values. Other values are
    ignored."""
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

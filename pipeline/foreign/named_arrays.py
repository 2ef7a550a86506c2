"""The matrices and lists of strings in an `.npz`, a `.safetensors` or a `.pt` file, by their names. No pickle runs."""

import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.compute.precision import to_numpy
from pipeline.errors import InputError

ALONE = "features"
"""The name of a tensor that a file has alone."""


@dataclass(frozen=True)
class NamedArrays:
    """Name -> array (n, d) of floats, and name -> n strings."""

    matrices: Mapping[str, np.ndarray]
    strings: Mapping[str, list[str]]


def read_npz(path: Path) -> NamedArrays:
    """Every array is read that is no pickle. Raises ValueError for those that are."""
    with np.load(path, allow_pickle=False) as file:
        return _sorted_out({name: file[name] for name in file.files})


def npz_bytes(path: Path) -> int:
    """What its arrays take unpacked, as its directory says."""
    with zipfile.ZipFile(path) as file:
        return sum(member.file_size for member in file.infolist())


def read_safetensors(path: Path) -> NamedArrays:
    """bfloat16, which NumPy has not, becomes float32."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return _sorted_out({name: to_numpy(file.get_tensor(name)) for name in file.keys()})  # noqa: SIM118


def read_torch(path: Path) -> NamedArrays:
    """A tensor, or a dictionary of tensors and of lists of strings, which torch.save wrote. Raises InputError for
    anything else that it pickled."""
    import torch

    try:
        stored = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:  # which advises the reader to let the file run code
        raise InputError(
            f"cannot read features from {path}: it is damaged, or has more than tensors and lists of strings;"
            " torch.save these alone"
        ) from error
    return _sorted_out(stored if isinstance(stored, Mapping) else {ALONE: stored})


READERS: Mapping[str, Callable[[Path], NamedArrays]] = {
    ".npz": read_npz,
    ".safetensors": read_safetensors,
    ".pt": read_torch,
    ".pth": read_torch,
}


def _sorted_out(values: Mapping[str, Any]) -> NamedArrays:
    """Those of the `values` that are matrices of floats, and those that are lists of strings."""
    matrices, strings = {}, {}
    for name, value in values.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "SU" and value.ndim == 1:
            strings[name] = (value if value.dtype.kind == "U" else np.char.decode(value, "utf-8")).tolist()
        elif isinstance(value, list | tuple):
            if all(isinstance(text, str) for text in value):
                strings[name] = list(value)
        elif hasattr(value, "shape") and (array := to_numpy(value)).ndim == 2 and array.dtype.kind == "f":
            matrices[name] = array
    return NamedArrays(matrices, strings)

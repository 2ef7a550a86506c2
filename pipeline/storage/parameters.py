"""Learned parameters: `<name>.safetensors` for the tensors, `<name>.json` for all else. No pickle anywhere."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import Record, publish, read_verified, sidecar_path
from pipeline.storage.batch import FileBatch

MODEL, ENCODER, TEXT_ENCODER, WORDS = "model", "encoder", "text-encoder", "words"


@dataclass(frozen=True)
class Parameters:
    """`tensors` by name; `settings` to rebuild the object around them; `details`: inputs, training log, and so on;
    `sha256` of the file."""

    tensors: Mapping[str, np.ndarray]
    settings: Mapping[str, Any]
    fingerprint: str
    details: Mapping[str, Any]
    sha256: str = ""


def write_parameters(
    path: Path,
    kind: str,
    tensors: Mapping[str, np.ndarray],
    *,
    settings: Mapping[str, Any],
    fingerprint: str,
    details: Mapping[str, Any] | None = None,
    batch: FileBatch | None = None,
) -> None:
    """Publish `tensors` as the safetensors file `path`, and the rest in its sidecar; `batch` is that of `publish`."""
    data = safetensors.numpy.save({name: np.asarray(tensor, order="C") for name, tensor in tensors.items()})
    details = {"settings": dict(settings), **(details or {})}
    publish(path, data, kind=kind, rows=len(tensors), fingerprint=fingerprint, details=details, batch=batch)


def read_parameters(path: Path, kind: str) -> Parameters:
    """What `write_parameters` published. Raises IntegrityError for a file that is damaged or of another kind."""
    data, sidecar = read_verified(path, kind)
    tensors = load_tensors(data, path)
    details = Record(sidecar.details, sidecar_path(path))
    if not isinstance(details.get("settings"), dict):
        raise IntegrityError(f"{sidecar_path(path)} has no settings; run its stage again")
    return Parameters(tensors, details.pop("settings"), sidecar.fingerprint, details, sidecar.sha256)


def load_tensors(data: bytes, path: Path, remedy: str = "run its stage again") -> dict[str, np.ndarray]:
    """The arrays in `data`, the content of the safetensors file `path`. Raises IntegrityError."""
    try:
        return safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, MemoryError) as error:
        raise IntegrityError(f"{path} is not a safetensors file ({error}); {remedy}") from error


def digest_tensors(tensors: Mapping[str, np.ndarray]) -> str:
    """The SHA-256 of all names, types, shapes and values, in any order."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(tensor.data)
    return digest.hexdigest()

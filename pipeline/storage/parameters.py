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
from pipeline.storage.atomic import Record, add_artefact, read_verified, sidecar_path
from pipeline.storage.batch import FileBatch

MODEL = "model"
ENCODER = "encoder"
WORDS = "words"


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
    """Publish `tensors` as the safetensors file `path`; its sidecar `<stem>.json` carries the rest.

    With a `batch` both become part of it, and appear when that is published.
    """
    data = safetensors.numpy.save({name: np.asarray(tensor, order="C") for name, tensor in tensors.items()})
    details = {"settings": dict(settings), **(details or {})}
    whole = FileBatch() if batch is None else batch
    add_artefact(whole, path, data, kind=kind, rows=len(tensors), fingerprint=fingerprint, details=details)
    if batch is None:
        whole.publish()


def read_parameters(path: Path, kind: str) -> Parameters:
    """What `write_parameters` published. Raises IntegrityError for a file that is damaged or of another kind."""
    data, sidecar = read_verified(path, kind)
    try:
        tensors = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, MemoryError) as error:
        raise IntegrityError(f"{path} is not a safetensors file ({error}); run its stage again") from error
    details = Record(sidecar.details, sidecar_path(path))
    if not isinstance(details.get("settings"), dict):
        raise IntegrityError(f"{sidecar_path(path)} has no settings; run its stage again")
    return Parameters(tensors, details.pop("settings"), sidecar.fingerprint, details, sidecar.sha256)


def digest_tensors(tensors: Mapping[str, np.ndarray]) -> str:
    """The SHA-256 of all names, types, shapes and values, whatever order they come in."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(tensor.data)
    return digest.hexdigest()

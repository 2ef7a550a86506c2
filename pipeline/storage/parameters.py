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
from pipeline.storage.batch import FileBatch
from pipeline.storage.commit import Commit, Provenance, details_of, open_commit, publish
from pipeline.storage.reading import read_bytes

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
    provenance: Provenance | None = None,
    details: Mapping[str, Any] | None = None,
    batch: FileBatch | None = None,
) -> Commit:
    """Publish `tensors` as the safetensors file `path`, and the rest in its commit; `batch` is that of `publish`."""
    data = safetensors.numpy.save({name: np.asarray(tensor, order="C") for name, tensor in tensors.items()})
    details = {"settings": dict(settings), **(details or {})}
    return publish(path, data, kind=kind, rows=len(tensors), provenance=provenance, details=details, batch=batch)


def read_parameters(path: Path, kind: str, anywhere: bool = False) -> Parameters:
    """What `write_parameters` published. Raises IntegrityError as `open_commit` does, and without settings."""
    commit = open_commit(path, kind, anywhere=anywhere)
    details = details_of(commit)
    if not isinstance(details.get("settings"), dict):
        raise IntegrityError(f"{commit.path} has no settings; run its stage again")
    sha256 = commit.files[path.name]["sha256"]
    return Parameters(load_tensors(read_bytes(path), path), details.pop("settings"), commit.digest, details, sha256)


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

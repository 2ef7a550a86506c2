"""Learned parameters of models and encoders, and the checkpoints of a training. No file uses pickle.

The tensors are in `<name>.safetensors`. Everything else is in the commit record `<name>.json`.

The origin of vectors names their source: {"encoder": digest} for a stored encoder, or {"imported": fingerprint}
for precomputed vectors. Origins are compared when photos or captions are added later, so that all vectors come from the
same encoder. The details of a model contain the origin for each encoder, because an index may be used without its run.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from pipeline.errors import IntegrityError
from pipeline.storage.batch import FileBatch, remove_own, sweep
from pipeline.storage.commit import (
    Commit,
    Commits,
    Provenance,
    combine_digests,
    commit_path,
    publish_record,
    read_commit,
    read_verified,
)
from pipeline.storage.files import REMEDY, inside, open_regular
from pipeline.storage.json_files import Json, Record, fingerprint

MODEL = "model"
ENCODER = "encoder"
TEXT_ENCODER = "text-encoder"
WORDS = "words"
FEATURE_MAP = "feature-map"

LIBRARY = "library"
"""The folder, next to the tensors of an encoder, with the files that its library needs to restore it."""
PART_BYTES = 1 << 24
"""Number of bytes of a library's file that are read at a time."""

Origin = Mapping[str, str]
ENCODERS = ("encoders/", "text/encoders/")
"""The folders of a run that contain the commit records of encoders."""
CHECKPOINT = "checkpoint"
CHECKPOINT_FILES = re.compile(r"step-\d{8}\.(safetensors|json)")


class LibraryFiles(NamedTuple):
    """The files of another library that belong to a stored encoder: their folder, and their paths below this folder."""

    folder: Path
    names: frozenset[str]


@dataclass(frozen=True)
class Parameters:
    """The stored parameters of a model or an encoder.

    `tensors` are the arrays by name, `settings` the values from which the model or encoder is constructed again, and
    `details` the inputs, the training log and so on. `fingerprint` is the digest of the commit record. `sha256` is the
    hash of the file of tensors. If the encoder has files of a `library`, `sha256` is one hash of all files.
    """

    tensors: Mapping[str, np.ndarray]
    settings: Mapping[str, Any]
    fingerprint: str
    details: Mapping[str, Any]
    sha256: str = ""
    library: LibraryFiles | None = None


def write_parameters(
    path: Path,
    kind: str,
    tensors: Mapping[str, np.ndarray],
    *,
    settings: Mapping[str, Json],
    provenance: Provenance | None = None,
    details: Mapping[str, Json] | None = None,
    batch: FileBatch | None = None,
    library: LibraryFiles | None = None,
) -> Commit:
    """Write `tensors` as the safetensors file `path`, and the settings and details in its commit record.

    `kind` is the kind of the artefact, such as MODEL. The files of a `library` are copied to the folder LIBRARY next to
    `path`, and the record vouches for them too. With a `batch`, the new files become visible when the caller publishes
    the batch. Library files that only the former record of `path` lists are removed in this call, even with a `batch`.
    An artefact without `provenance` does not belong to a run. Returns the record.
    """
    data = safetensors.numpy.save({name: np.asarray(tensor, order="C") for name, tensor in tensors.items()})
    value = {"kind": kind, "rows": len(tensors), "details": {"settings": dict(settings), **(details or {})}}
    writer = FileBatch() if batch is None else batch
    files = {}
    if library is not None:
        for name in sorted(library.names):
            file = f"{LIBRARY}/{name}"
            files[file] = writer.add(path.parent / file, _parts_of(library.folder / name))
    former = _library_files(path)
    commit = publish_record(commit_path(path), value, {path.name: data}, provenance, files, batch=writer)
    if batch is None:
        writer.publish()
    for file in former - files.keys():
        inside(path.parent, file, commit.path).unlink(missing_ok=True)
    return commit


def _parts_of(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in parts of PART_BYTES."""
    with open_regular(path) as file:
        while part := file.read(PART_BYTES):
            yield part


def _library_files(path: Path) -> set[str]:
    """Return the paths of the library files that the commit record of `path` lists, relative to the folder of `path`.

    The set is empty if there is no readable record.
    """
    if not os.path.exists(commit_path(path)):
        return set()
    try:
        return {name for name in read_commit(commit_path(path)).files if name.startswith(f"{LIBRARY}/")}
    except IntegrityError:
        return set()


def read_parameters(path: Path, kind: str, anywhere: bool = False) -> Parameters:
    """Read the parameters that `write_parameters` has written to `path`.

    With `anywhere`, the commit record need not be at its place in a run, and its inputs are not checked. Raises
    IntegrityError if the record is missing, not valid, not of this `kind` or without settings, and if the file is not a
    safetensors file.
    """
    data, commit = read_verified(path, kind, anywhere)
    details = Record(commit.details, commit.path)
    if not isinstance(details.get("settings"), dict):
        raise IntegrityError(f"{commit.path} has no settings. {REMEDY}")
    sha256 = commit.files[path.name]["sha256"]
    library = None
    if names := {name for name in commit.files if name.startswith(f"{LIBRARY}/")}:
        names = frozenset(name.removeprefix(f"{LIBRARY}/") for name in names)
        library = LibraryFiles(path.parent / LIBRARY, names)
        sha256 = combine_digests(commit.files[name]["sha256"] for name in sorted(commit.files))
    return Parameters(load_tensors(data, path), details.pop("settings"), commit.digest, details, sha256, library)


def load_tensors(data: bytes, path: Path, remedy: str = REMEDY) -> dict[str, np.ndarray]:
    """Parse `data`, the content of the safetensors file `path`, and return its arrays by name.

    Raises IntegrityError, whose message ends with the `remedy`, if `data` is not such a file.
    """
    try:
        return safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, MemoryError) as error:
        raise IntegrityError(f"{path} is not a safetensors file ({error}). {remedy}") from error


def digest_tensors(tensors: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the names, types, shapes and values of all tensors, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(tensor.data)
    return digest.hexdigest()


def origin_of(commit: Commit) -> Origin:
    """Return the origin of the vectors in the shard with this commit record.

    Return an empty mapping if the record does not say where the vectors come from.
    """
    if "origin" in commit.details:
        return commit.details["origin"]
    for place, digest in commit.inputs.items():
        if place.startswith(ENCODERS):
            return {"encoder": digest}
    imported = commit.details.get("encoder", {}).get("imported")
    return {"imported": fingerprint("imported", 1, imported)} if imported else {}


class Checkpoints:
    """The checkpoints `<folder>/step-00000001.safetensors` and so on of the training with this fingerprint.

    `latest` ignores checkpoints of other trainings. A new checkpoint is published before all older checkpoints in the
    folder are removed, so at least one stays intact if the process is killed. `seconds` is the shortest time between
    two checkpoints.
    """

    def __init__(self, folder: Path, fingerprint: str, seconds: float) -> None:
        self.folder = Path(folder)
        self.seconds = seconds
        self._provenance = Provenance(self.folder, CHECKPOINT, 1, {"of": fingerprint})
        self._last = time.monotonic()

    def latest(self) -> Parameters | None:
        """Read the newest intact checkpoint of this training. Return None if there is no such checkpoint.

        Temporary files of dead processes in the folder are removed.
        """
        sweep(self.folder)
        for path in sorted(self._paths(), reverse=True):
            try:
                if Commits(self.folder).is_done(commit_path(path), self._provenance):
                    return read_parameters(path, CHECKPOINT)
            except IntegrityError:
                continue
        return None

    def offer(self, make: Callable[[], tuple[Mapping[str, np.ndarray], Mapping[str, Json]]]) -> None:
        """Write a checkpoint of the tensors and settings that `make` returns, if `seconds` have passed since the last
        checkpoint. For the first checkpoint, `seconds` must have passed since this object was constructed."""
        if time.monotonic() - self._last < self.seconds:
            return
        older = self._paths()
        number = max((int(path.stem.partition("-")[2]) for path in older), default=0) + 1
        tensors, settings = make()
        path = self.folder / f"step-{number:08d}.safetensors"
        write_parameters(path, CHECKPOINT, tensors, settings=settings, provenance=self._provenance)
        for old in older:
            commit_path(old).unlink(missing_ok=True)
            old.unlink()
        self._last = time.monotonic()

    def clear(self) -> None:
        """Remove all checkpoints in the folder, also checkpoints of other trainings, and temporary files of dead
        processes. Remove the folder too if no other file is in it."""
        remove_own(self.folder, CHECKPOINT_FILES)

    def _paths(self) -> list[Path]:
        return [path for path in self.folder.glob("step-*.safetensors") if CHECKPOINT_FILES.fullmatch(path.name)]

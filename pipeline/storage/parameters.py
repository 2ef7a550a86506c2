"""Learned parameters: `<name>.safetensors` for the tensors, `<name>.json` for all else; what made them, and checkpoints
of their training. No pickle anywhere.

The origin of an encoder says what turns an image or a sentence into its vectors, so that those that are added later
get the same: {"encoder": digest} or {"imported": fingerprint}. Details of
models carry the origins by encoder into indexes, where the run is not.
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
    combined,
    commit_path,
    publish_record,
    read_commit,
    read_verified,
)
from pipeline.storage.files import inside, open_regular
from pipeline.storage.json_files import Json, Record, fingerprint

MODEL, ENCODER, TEXT_ENCODER, WORDS, FEATURE_MAP = "model", "encoder", "text-encoder", "words", "feature-map"

LIBRARY = "library"
"""The folder, beside the tensors of an encoder, of the files of the library that it is a model of."""
PART_BYTES = 1 << 24

Origin = Mapping[str, str]
ENCODERS = ("encoders/", "text/encoders/")
"""Where the commits of encoders lie."""
CHECKPOINT = "checkpoint"
CHECKPOINT_FILES = re.compile(r"step-\d{8}\.(safetensors|json)")


class LibraryFiles(NamedTuple):
    """The files of another library that belong to a stored encoder: their folder, and their paths below it."""

    folder: Path
    names: frozenset[str]


@dataclass(frozen=True)
class Parameters:
    """`tensors` by name; `settings` to rebuild the object around them; `details`: inputs, training log, and so on;
    `sha256` of the file."""

    tensors: Mapping[str, np.ndarray]
    settings: Mapping[str, Any]
    fingerprint: str
    details: Mapping[str, Any]
    sha256: str = ""
    library: LibraryFiles | None = None
    """The files of the library that an encoder is a model of."""


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
    """Publish `tensors` as the safetensors file `path`, and the rest in its commit; `batch` is that of `publish`.

    The files of a `library` are copied into the folder LIBRARY beside `path`, and the commit vouches for them, too.
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
    """Return the library's files of the encoder that is already at `path`."""
    if not os.path.exists(commit_path(path)):
        return set()
    try:
        return {name for name in read_commit(commit_path(path)).files if name.startswith(f"{LIBRARY}/")}
    except IntegrityError:
        return set()


def read_parameters(path: Path, kind: str, anywhere: bool = False) -> Parameters:
    """Read what `write_parameters` published. Raises IntegrityError as `read_verified` does, and without settings."""
    data, commit = read_verified(path, kind, anywhere)
    details = Record(commit.details, commit.path)
    if not isinstance(details.get("settings"), dict):
        raise IntegrityError(f"{commit.path} has no settings; run its stage again")
    sha256 = commit.files[path.name]["sha256"]
    library = None
    if names := {name for name in commit.files if name.startswith(f"{LIBRARY}/")}:
        names = frozenset(name.removeprefix(f"{LIBRARY}/") for name in names)
        library = LibraryFiles(path.parent / LIBRARY, names)
        sha256 = combined(commit.files[name]["sha256"] for name in sorted(commit.files))
    return Parameters(load_tensors(data, path), details.pop("settings"), commit.digest, details, sha256, library)


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


def origin_of(commit: Commit) -> Origin:
    """Return the origin of the vectors (of images, regions or texts) in a shard."""
    if "origin" in commit.details:
        return commit.details["origin"]
    for place, digest in commit.inputs.items():
        if place.startswith(ENCODERS):
            return {"encoder": digest}
    imported = commit.details.get("encoder", {}).get("imported")
    return {"imported": fingerprint("imported", 1, imported)} if imported else {}


class Checkpoints:
    """The training checkpoints `<folder>/step-00000001.safetensors` of the run with this fingerprint; others are
    ignored. The newest intact one counts.

    A new file is published before older ones are removed, so a kill at any time leaves an intact one.
    """

    def __init__(self, folder: Path, fingerprint: str, seconds: float) -> None:
        self.folder, self.seconds = Path(folder), seconds
        self._provenance = Provenance(self.folder, CHECKPOINT, 1, {"of": fingerprint})
        self._last = time.monotonic()

    def latest(self) -> Parameters | None:
        """The newest intact checkpoint of this training run; None if there is none."""
        sweep(self.folder)
        for path in sorted(self._paths(), reverse=True):
            try:
                if Commits(self.folder).is_done(commit_path(path), self._provenance):
                    return read_parameters(path, CHECKPOINT)
            except IntegrityError:
                continue
        return None

    def offer(self, make: Callable[[], tuple[Mapping[str, np.ndarray], Mapping[str, Json]]]) -> None:
        """Publish the tensors and settings that `make` returns if the last checkpoint is `seconds` old."""
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
        remove_own(self.folder, CHECKPOINT_FILES)

    def _paths(self) -> list[Path]:
        return [path for path in self.folder.glob("step-*.safetensors") if CHECKPOINT_FILES.fullmatch(path.name)]

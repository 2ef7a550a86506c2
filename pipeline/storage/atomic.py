"""Publishing files so that a reader sees the whole artefact or none.

An artefact and its sidecar `<name>.json`, which is its commit, are a batch (`pipeline.storage.batch`): an artefact
without its sidecar does not exist. A JSON object of ours carries under `check` the sha256 of the rest of it, since no
other file vouches for it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import IntegrityError
from pipeline.storage.batch import Batch, file_sha256
from pipeline.storage.fingerprint import canonical_json

CHECK = "check"
FIELDS = {"kind": str, "rows": int, "bytes": int, "sha256": str, "fingerprint": str, "details": dict}
"""What a sidecar holds besides its `check`."""


@dataclass(frozen=True)
class Sidecar:
    """The commit beside an artefact: `kind`, `rows`, `bytes`, `sha256`, `fingerprint`, and `details`."""

    kind: str
    rows: int
    bytes: int
    sha256: str
    fingerprint: str
    details: Mapping[str, Any]


def sidecar_path(path: Path) -> Path:
    """`shard-00000.h5.json` beside `shard-00000.h5`, but `model.json` beside `model.safetensors`."""
    path = Path(path)
    return path.with_suffix(".json") if path.suffix == ".safetensors" else path.with_name(path.name + ".json")


def publish(
    path: Path,
    data: bytes | memoryview,
    *,
    kind: str,
    rows: int,
    fingerprint: str,
    details: Mapping[str, Any] | None = None,
) -> Sidecar:
    """Write an artefact and its sidecar. An older artefact of that name stays whole until it is replaced."""
    batch = Batch()
    sidecar = add_artefact(batch, path, data, kind=kind, rows=rows, fingerprint=fingerprint, details=details)
    batch.publish()
    return sidecar


def add_artefact(
    batch: Batch,
    path: Path,
    data: bytes | memoryview,
    *,
    kind: str,
    rows: int,
    fingerprint: str,
    details: Mapping[str, Any] | None = None,
) -> Sidecar:
    """As `publish`, together with whatever else is in `batch`."""
    sha256 = batch.add(path, data)
    sidecar = Sidecar(kind, rows, memoryview(data).nbytes, sha256, fingerprint, dict(details or {}))
    batch.add(sidecar_path(path), to_json(vars(sidecar)), commit=True)
    return sidecar


def publish_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically: a small result that is its own commit. An object gets its `check`."""
    publish_bytes(path, to_json(value))


def to_json(value: Any) -> bytes:
    """`value` as a JSON file of ours. Raises ValueError for NaN and infinity."""
    if isinstance(value, Mapping):
        plain = json.loads(json.dumps(dict(value), allow_nan=False))
        value = {**value, CHECK: _digest_rest(plain)}
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def publish_text(path: Path, text: str) -> None:
    """Write a text file atomically, as UTF-8."""
    publish_bytes(path, text.encode())


def publish_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write a file atomically, without a sidecar."""
    publish_all({path: data})


def publish_all(files: Mapping[Path, bytes | memoryview]) -> None:
    """Write several files without sidecars: all or, where they cannot be written, none."""
    batch = Batch()
    for path, data in files.items():
        batch.add(path, data)
    batch.publish()


def read_json(path: Path) -> Any:
    """The value in a JSON file of ours; IntegrityError names a file that is missing or damaged."""
    try:
        value = json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise IntegrityError(f"{path} does not exist; run the stage that makes it") from None
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is not valid JSON ({error}); delete it and run its stage again") from error
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, dict) and CHECK in part and part[CHECK] != _digest_rest(part):
            raise IntegrityError(f"{path} is damaged or was edited; delete it and run its stage again")
    return value


def _digest_rest(value: Mapping[str, Any]) -> str:
    rest = {name: part for name, part in value.items() if name != CHECK}
    try:
        return hashlib.sha256(canonical_json(rest)).hexdigest()
    except ValueError:  # NaN, which nothing of ours writes
        return ""


def read_sidecar(path: Path, kind: str) -> Sidecar:
    """The sidecar of an artefact of `kind`, its bytes not yet checked."""
    value = read_json(sidecar_path(path))
    if not is_sidecar(value):
        raise IntegrityError(f"{sidecar_path(path)} is not a sidecar; delete it and run its stage again")
    sidecar = Sidecar(**{name: value[name] for name in FIELDS})
    if sidecar.kind != kind:
        raise IntegrityError(f"{path} holds {sidecar.kind}, not {kind}: give the right file")
    return sidecar


def is_sidecar(value: Any) -> bool:
    """Whether the value of a JSON file has all that a sidecar has, and nothing else."""
    return (
        isinstance(value, dict)
        and value.keys() - {CHECK} == FIELDS.keys()
        and all(type(value[name]) is kind for name, kind in FIELDS.items())
    )


_checked: dict[tuple[str, int, int], str] = {}


def verify(path: Path, kind: str) -> Sidecar:
    """Check size and sha256 of an artefact against its sidecar, once per process, before anything parses it."""
    path = Path(path)
    sidecar = read_sidecar(path, kind)
    try:
        stat = path.stat()
    except FileNotFoundError:
        raise IntegrityError(f"{path} does not exist although its sidecar does; run its stage again") from None
    key = (str(path.absolute()), stat.st_mtime_ns, stat.st_size)
    if key not in _checked:
        _checked[key] = file_sha256(path) if stat.st_size == sidecar.bytes else "wrong size"
    if _checked[key] != sidecar.sha256:
        raise IntegrityError(f"{path} is damaged: it does not match its sidecar; delete it and run its stage again")
    return sidecar


def read_verified(path: Path, kind: str) -> tuple[bytes, Sidecar]:
    """The bytes of a (small) artefact after `verify`."""
    sidecar = verify(path, kind)
    return Path(path).read_bytes(), sidecar


def is_published(path: Path, kind: str, fingerprint: str) -> bool:
    """Whether the artefact is there, whole, and made from exactly what `fingerprint` says."""
    if not sidecar_path(path).exists():
        return False
    try:
        return verify(path, kind).fingerprint == fingerprint
    except IntegrityError:
        return False

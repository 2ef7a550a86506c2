"""Publishing files so that a reader sees the whole artefact or none.

An artefact and its commit, the sidecar `<name>.json`, are written together: an artefact without its sidecar does not
exist. A JSON file of ours carries the sha256 of its own content under `check`, since no other file vouches for it.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import IntegrityError
from pipeline.storage.batch import FileBatch
from pipeline.storage.fingerprint import canonical_json
from pipeline.storage.places import SHARD, claims, require_output, require_place
from pipeline.storage.reading import REMEDY, file_sha256, is_there, read_bytes, refusing

CHECK = "check"
TABLES = "tables"
"""The kind of tables in Markdown, which `reproduce` includes."""
FIELDS = {"kind": str, "rows": int, "bytes": int, "sha256": str, "fingerprint": str, "details": dict}
"""What a sidecar holds besides its `check`."""
DETAILS = {
    "inputs": dict, "encoders": dict, "regions": dict, "settings": dict, "vocabulary": str, "dim": int, SHARD: int,
}  # fmt: skip
"""The types of the details that readers of several kinds rely on."""


class Record(dict):
    """An object from the JSON file `path`. A missing key raises an IntegrityError that names the file."""

    def __init__(self, value: Any = (), path: Path | None = None) -> None:
        super().__init__(value)
        self.path = path

    def __missing__(self, key: str) -> Any:
        raise IntegrityError(f"{self.path} has no key {key}: an earlier version wrote it; run its stage again")


@dataclass(frozen=True)
class Sidecar:
    """The commit beside an artefact. `sha256` and `bytes` describe the artefact's file."""

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
    batch: FileBatch | None = None,
) -> Sidecar:
    """Write an artefact and its sidecar; an older artefact stays whole until it is replaced.

    With a `batch`, both become visible when that is published. A file that is named as a shard gets its number as a
    detail. Raises UsageError if the details contradict the file's name (another shard, model and so on).
    """
    details = {**{key: value for key, value in claims(path).items() if key == SHARD}, **(details or {})}
    require_output(path, details)
    files = FileBatch() if batch is None else batch
    sha256 = files.add(path, data)
    sidecar = Sidecar(kind, rows, memoryview(data).nbytes, sha256, fingerprint, details)
    files.add(sidecar_path(path), to_json(vars(sidecar)), commit=True)
    if batch is None:
        files.publish()
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


def publish_record(path: Path, value: Mapping[str, Any], beside: Mapping[str, bytes] | None = None) -> None:
    """Write a JSON object that is its own commit. It vouches for the files `beside` it (name -> bytes) under `files`.

    Raises UsageError if the object contradicts the file's name (another model, split and so on).
    """
    require_output(path, value)
    batch, files = FileBatch(), {}
    for name, data in (beside or {}).items():
        files[name] = {"bytes": len(data), "sha256": batch.add(path.with_name(name), data)}
    batch.add(path, to_json({**value, **({"files": files} if files else {})}), commit=True)
    batch.publish()


def publish_text(path: Path, text: str) -> None:
    publish_bytes(path, text.encode())


def publish_bytes(path: Path, data: bytes | memoryview | Iterator[bytes]) -> None:
    """Write a file atomically, at once or in parts, without a sidecar."""
    batch = FileBatch()
    batch.add(path, data)
    batch.publish()


def read_json(path: Path) -> Any:
    """The value in a JSON file of ours. Raises IntegrityError if the file is missing or damaged."""
    try:
        value = json.loads(read_bytes(path), object_hook=lambda part: Record(part, path))
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is not valid JSON ({error}); {REMEDY}") from error
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, dict) and CHECK in part and part[CHECK] != _digest_rest(part):
            raise IntegrityError(f"{path} is damaged or was edited; {REMEDY}")
    return value


def _digest_rest(value: Mapping[str, Any]) -> str:
    rest = {name: part for name, part in value.items() if name != CHECK}
    try:
        return hashlib.sha256(canonical_json(rest)).hexdigest()
    except ValueError:  # NaN, which nothing of ours writes
        return ""


def read_sidecar(path: Path, kind: str) -> Sidecar:
    """The sidecar of an artefact of `kind`. The artefact's bytes are not checked."""
    value = read_json(sidecar_path(path))
    if not is_sidecar(value):
        raise IntegrityError(f"{sidecar_path(path)} is not a sidecar; {REMEDY}")
    sidecar = Sidecar(**{name: value[name] for name in FIELDS})
    if sidecar.kind != kind:
        raise IntegrityError(f"{path} holds {sidecar.kind}, not {kind}: give the right file")
    require_place(path, sidecar.details)
    return sidecar


def is_sidecar(value: Any) -> bool:
    """Whether the value of a JSON file has all keys of a sidecar, and no others."""
    if not isinstance(value, dict) or value.keys() - {CHECK} != FIELDS.keys():
        return False
    if not all(_is(value[name], kind) for name, kind in FIELDS.items()) or min(value["rows"], value["bytes"]) < 0:
        return False
    details = value["details"]
    return all(_is(details[name], kind) for name, kind in DETAILS.items() if details.get(name) is not None)


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


_checked: dict[tuple[str, int, int], str] = {}


def verify(path: Path, kind: str) -> Sidecar:
    """Check an artefact's size and sha256 against its sidecar before anything parses it, once per process."""
    path = Path(path)
    sidecar = read_sidecar(path, kind)
    with refusing(path, missing=f"does not exist although its sidecar does; {REMEDY}"):
        stat = os.stat(path)
        key = (str(path.absolute()), stat.st_mtime_ns, stat.st_size)
        if key not in _checked:
            _checked[key] = file_sha256(path) if stat.st_size == sidecar.bytes else "wrong size"
    if _checked[key] != sidecar.sha256:
        raise IntegrityError(f"{path} is damaged: it does not match its sidecar; {REMEDY}")
    return sidecar


def read_verified(path: Path, kind: str) -> tuple[bytes, Sidecar]:
    """The bytes of a (small) artefact after `verify`."""
    sidecar = verify(path, kind)
    return read_bytes(path), sidecar


def is_published(path: Path, kind: str, fingerprint: str) -> bool:
    """Whether the artefact is there and whole, and has this fingerprint."""
    try:
        return is_there(sidecar_path(path)) and verify(path, kind).fingerprint == fingerprint
    except IntegrityError:
        return False

"""Publishing files so that a reader sees the whole artefact or none.

The order is: temporary name in the same folder, write, fsync, re-read and check, `os.replace`, fsync the
folder; then the same for the sidecar `<name>.json`, which is the commit. An artefact without its sidecar
does not exist. Everything is written by plain Python file objects: the writers of numpy, faiss and HDF5
can report success on a full disk. A JSON object of ours carries under `check` the sha256 of the rest of it, since no
other file vouches for it.
"""

import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import IntegrityError, JointspaceError
from pipeline.storage.fingerprint import canonical_json

HASH_BLOCK = 1 << 22
TEMPORARY = re.compile(r"^\.(?P<name>.+)\.tmp\.(?P<pid>\d+)$", re.DOTALL)
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
    path = Path(path)
    data = memoryview(data).cast("B")
    sidecar = Sidecar(kind, rows, len(data), hashlib.sha256(data).hexdigest(), fingerprint, dict(details or {}))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = write_temporary(path, data, sidecar.sha256)
    # The old commit goes first: between the two renames the new bytes must not pass for the old artefact.
    sidecar_path(path).unlink(missing_ok=True)
    _rename(temporary, path)
    publish_json(sidecar_path(path), vars(sidecar))
    return sidecar


def publish_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically: a sidecar, or a small result that is its own commit. An object gets its `check`."""
    if isinstance(value, Mapping):
        plain = json.loads(json.dumps(dict(value), allow_nan=False))
        value = {**value, CHECK: _digest_rest(plain)}
    publish_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def publish_text(path: Path, text: str) -> None:
    """Write a text file atomically, as UTF-8."""
    publish_bytes(path, text.encode())


def publish_bytes(path: Path, data: bytes | memoryview) -> str:
    """Write a file atomically, without a sidecar: another file vouches for it. Returns its sha256."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = memoryview(data).cast("B")
    sha256 = hashlib.sha256(data).hexdigest()
    _rename(write_temporary(path, data, sha256), path)
    return sha256


def write_temporary(path: Path, data: memoryview, sha256: str) -> Path:
    """Write `data` under a temporary name beside `path`, fsynced and read back. Returns that name."""
    sweep(path.parent, path.name)
    temporary = path.with_name(f".{path.name}.tmp.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if file_sha256(temporary) != sha256:
            raise OSError("what was read back differs from what was written")
    except OSError as error:
        temporary.unlink(missing_ok=True)
        free = shutil.disk_usage(path.parent).free
        raise JointspaceError(
            f"cannot write {path} ({len(data):,} bytes, {free:,} free on its disk): {error.strerror or error};"
            " make room or choose another results_root"
        ) from error
    return temporary


def _rename(temporary: Path, path: Path) -> None:
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(HASH_BLOCK):
            digest.update(block)
    return digest.hexdigest()


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


def sweep(folder: Path, name: str | None = None) -> list[Path]:
    """Remove temporary files (of the artefact `name` only) whose process on this machine is gone; returns them."""
    pattern = "*" if name is None else glob.escape(name)
    removed = [path for path in Path(folder).glob(f".{pattern}.tmp.*") if is_orphan(path)]
    for path in removed:
        path.unlink(missing_ok=True)
    return removed


def is_orphan(path: Path) -> bool:
    """Whether `path` is a temporary file whose process on this machine is gone."""
    match = TEMPORARY.match(path.name)
    return match is not None and not _alive(int(match["pid"]))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    except OverflowError:
        return False
    return True

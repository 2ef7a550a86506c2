"""JSON files of ours, and other small files, written so that a reader sees the whole file or none.

A JSON object carries the sha256 of its own content under `check`, since no other file vouches for it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import IntegrityError
from pipeline.storage.batch import FileBatch
from pipeline.storage.fingerprint import canonical_json
from pipeline.storage.reading import REMEDY, read_bytes

CHECK = "check"


class Record(dict):
    """An object from the JSON file `path`. A missing key raises an IntegrityError that names the file."""

    def __init__(self, value: Any = (), path: Path | None = None) -> None:
        super().__init__(value)
        self.path = path

    def __missing__(self, key: str) -> Any:
        raise IntegrityError(f"{self.path} has no key {key}: an earlier version wrote it; run its stage again")


def publish_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically. An object gets its `check`."""
    publish_bytes(path, to_json(value))


def to_json(value: Any) -> bytes:
    """`value` as a JSON file of ours. Raises ValueError for NaN and infinity."""
    if isinstance(value, Mapping):
        plain = json.loads(json.dumps(dict(value), allow_nan=False))
        value = {**value, CHECK: _digest_rest(plain)}
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def publish_text(path: Path, text: str) -> None:
    publish_bytes(path, text.encode())


def publish_bytes(path: Path, data: bytes | memoryview | Iterator[bytes]) -> None:
    """Write a file atomically, at once or in parts, without a commit."""
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

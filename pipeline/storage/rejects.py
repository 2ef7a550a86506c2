"""What was left out of a collection: `rejects.jsonl`, one JSON object {file, row, what, reason} a line."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.storage.fingerprint import canonical_json
from pipeline.storage.forms import Form
from pipeline.storage.records import read_lines


class RejectForm(Form):
    file: str
    row: int | None
    what: str
    reason: str


def to_lines(rejects: Iterable[Mapping[str, Any]]) -> bytes:
    """JSON lines; names that are not UTF-8 survive as escapes."""
    return b"".join(canonical_json(dict(row)) + b"\n" for row in rejects)


def from_lines(data: bytes, path: Path) -> list[dict[str, Any]]:
    """The rejects in the file `path`. IntegrityError names the first line that is none."""
    return read_lines(data, RejectForm, path, "run ingest again")

"""What was left out of a collection: `rejects.jsonl`, one JSON object {file, row, what, reason} a line."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.storage.atomic import publish_bytes
from pipeline.storage.batch import is_regular
from pipeline.storage.fingerprint import canonical_json
from pipeline.storage.forms import Form
from pipeline.storage.records import each_line


class RejectForm(Form):
    file: str
    row: int | None
    what: str
    reason: str


def to_lines(rejects: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """JSON lines; names that are not UTF-8 survive as escapes."""
    return (canonical_json(dict(reject)) + b"\n" for reject in rejects)


def from_lines(lines: Iterable[bytes], path: Path) -> Iterator[dict[str, Any]]:
    """The rejects in the lines of `path`. Raises IntegrityError naming the first line that is not one."""
    return each_line(lines, RejectForm, path, "run ingest again")


def write_rejects(path: Path, rejects: Iterable[Mapping[str, Any]]) -> None:
    publish_bytes(path, to_lines(rejects))


def remove_rejects(path: Path) -> None:
    """Remove what `write_rejects` wrote, but not another file of that name."""
    try:
        if not is_regular(path) or not path.stat().st_size:
            return
        with open(path, "rb") as lines:
            own = all(json.loads(line).keys() == RejectForm.model_fields.keys() for line in lines)
        if own:
            path.unlink()
    except (OSError, ValueError, AttributeError, RecursionError):
        return

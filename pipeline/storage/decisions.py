"""The decisions of a person about suspicious captions, in the file `audit/decisions.tsv` of a run.

`serve --review` writes this file. `audit`, `ingest` and the report read it. The first line has the names of the
columns. It is followed by one row for each decision, the oldest first. Tabs separate the columns:

- `image`: the name of a photo, as in a takedown list. A line break in the name is written as a backslash and a letter.
- `caption`: a caption of the photo with single spaces, or "" for the photo with all its captions.
- `decision`: `wrong`, `right` or `unsure`.
- `time`: the time of the decision in UTC.

A later row about the same photo and caption replaces an earlier row. The rows do not depend on the numbers of photos
and captions, which a later `ingest` may change.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import InputError
from pipeline.foreign.files import read_lines
from pipeline.foreign.image_names import escape_line_breaks, restore_line_breaks
from pipeline.storage.batch import publish_text

HEADER = "image\tcaption\tdecision\ttime"
CHOICES = ("wrong", "right", "unsure")
"""The possible decisions. `ingest` leaves out a caption with the decision `wrong`, and a photo if this decision is
about all of its captions. It keeps all other captions and photos."""
Pair = tuple[str, str]
"""The values of `image` and `caption` in a row. The caption is "" for a decision about all captions of the photo."""


class Decision(NamedTuple):
    """One row of the file `audit/decisions.tsv`, whose columns the module describes."""

    image: str
    caption: str
    decision: str
    time: str

    @classmethod
    def now(cls, pair: Pair, decision: str) -> "Decision":
        """Return a decision about a pair at the present time."""
        return cls(*pair, decision, datetime.now(UTC).isoformat(timespec="seconds"))


def pair_of(finding: Mapping[str, Any]) -> Pair | None:  # Any: a row of the table that `audit` writes
    """Return the photo and the caption of a finding, on which a person can decide, or None for a near-duplicate.

    `finding` is a row of the table that `audit` writes. The caption is "" if the finding is about all captions of the
    photo.
    """
    if finding["captions"] is None:
        return None
    return finding["image"], one_line(finding["captions"][0]) if finding["kind"] == "caption" else ""


def one_line(caption: str) -> str:
    """Return the caption on one line, with single spaces between its words and none at its ends."""
    return " ".join(caption.split())


def read_decisions(path: Path) -> list[Decision]:
    """Read the decisions in a file, in their order. The list is empty if the file does not exist.

    Raises InputError if the file cannot be read, or if a row is not a decision. The message has the number of this row.
    """
    decisions = []
    for number, line in enumerate(read_lines(path) if path.exists() else [], 1):
        if line.strip() and line != HEADER:
            image, *rest = line.rsplit("\t", 3)
            if len(rest) != 3 or not image.strip() or rest[1] not in CHOICES:
                raise InputError(
                    f"{path} row {number} is not a decision. A row has the columns image, caption, decision and time,"
                    f" separated by tabs, and the decision is {', '.join(CHOICES)}. Correct or remove the row."
                )
            decisions.append(Decision(restore_line_breaks(image), one_line(rest[0]), *rest[1:]))
    return decisions


def write_decisions(path: Path, decisions: Iterable[Decision]) -> None:
    """Write all `decisions` to the file `path`, in place of its earlier content. Raises JointspaceError if it cannot be
    written."""
    rows = (escape_line_breaks("\t".join(decision)) for decision in decisions)
    publish_text(path, "".join(f"{line}\n" for line in (HEADER, *rows)))


def latest(decisions: Iterable[Decision]) -> dict[Pair, str]:
    """Return pair -> the last decision about this pair, such as `wrong`."""
    return {(row.image, row.caption): row.decision for row in decisions}

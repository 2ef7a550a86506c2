"""What the stages of a run were forecast to take and what they took, as cells of a table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.plan.comparison import total

DASH = "–"


def duration(seconds: float) -> str:
    """`2 min 5 s`, or `0.4 s`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "seconds": ("forecast", duration),
    "seconds_run": ("took", duration),
    "ratio": ("forecast / took", "{:.2f}".format),
    "processor_run": ("processor", duration),
    "jobs_run": ("jobs", "{:,}".format),
    "memory_mb": ("memory asked for", "{:,.0f} MB".format),
    "memory_run": ("largest job", "{:,.0f} MB".format),
}
"""Key in a row of pipeline.plan.comparison -> heading, and how a value is written."""


@dataclass(frozen=True)
class CostTable:
    """`headings`, and for each stage its name and cells; the last of `lines` is the total. `planned`: whether anything
    was forecast."""

    headings: Sequence[str]
    lines: Sequence[tuple[str, Sequence[str]]]
    planned: bool


def cost_table(rows: Sequence[Mapping[str, Any]]) -> CostTable | None:
    """The table of what `compare` of pipeline.plan.comparison gave; a column that no row has is left out. None where
    nothing is known."""
    if not rows:
        return None
    shown = {key: column for key, column in COLUMNS.items() if any(row.get(key) for row in rows)}
    lines = [
        (
            row["rule"].replace("_", "-"),
            [DASH if row.get(key) is None else form(row[key]) for key, (_, form) in shown.items()],
        )
        for row in (*rows, total(rows))
    ]
    return CostTable([heading for heading, _ in shown.values()], lines, "seconds" in shown)

"""What the jobs of a run took, rule by rule, from Snakemake's measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MINUTES = 600
"""From so many on, hours are enough."""
HEADINGS = ("jobs", "took", "processor", "largest job")


@dataclass(frozen=True)
class CostTable:
    """For each rule its name and cells; the last of `lines` is the total."""

    headings: Sequence[str]
    lines: Sequence[tuple[str, Sequence[str]]]


def cost_table(rows: Sequence[Mapping[str, Any]]) -> CostTable | None:
    """The rows of storage.benchmarks.add_up as a page shows them; None where nothing has run."""
    if not rows:
        return None
    total = {key: sum(row[key] for row in rows) for key in ("jobs", "seconds", "processor")}
    total |= {"rule": "total", "memory_mb": max(row["memory_mb"] for row in rows)}
    return CostTable(HEADINGS, [(row["rule"].replace("_", "-"), _cells(row)) for row in (*rows, total)])


def _cells(row: Mapping[str, Any]) -> Sequence[str]:
    return (
        f"{row['jobs']:,}",
        duration(row["seconds"]),
        duration(row["processor"]),
        f"{row['memory_mb']:,.0f} MB",
    )


def duration(seconds: float) -> str:
    """`2 min 5 s`, or `0.4 s`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < MINUTES else f"{seconds / 3600:,.0f} h"

"""Forecast beside fact, as rows of a table."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.plan.forecast import Stage

COLUMNS = {
    "rule": "stage",
    "jobs": "jobs",
    "seconds": "seconds",
    "memory_mb": "MB a job",
    "gpu_memory_mb": "GPU MB",
    "disk_mb": "disk MB",
    "seconds_run": "took",
    "processor_run": "processor",
    "memory_run": "MB taken",
    "ratio": "ratio",
}


class Fact(NamedTuple):
    """What the jobs of a rule took: how many have run, their wall and `processor` seconds together, and the most
    `memory` of one in MB."""

    jobs: int
    seconds: float
    processor: float
    memory: float


def add_up(recorded: Mapping[str, Sequence[tuple[float, float, float]]]) -> dict[str, Fact]:
    """The fact of each rule from the seconds, processor seconds and memory of each of its jobs."""
    facts = {}
    for rule, jobs in recorded.items():
        seconds, processor, memory = zip(*jobs, strict=True)
        facts[rule] = Fact(len(jobs), sum(seconds), sum(processor), max(memory))
    return facts


def compare(stages: Sequence[Stage], facts: Mapping[str, Fact]) -> list[dict[str, Any]]:
    """One row for each rule that was forecast or has run; `ratio` is forecast over fact in seconds, where both are."""
    rows = []
    for rule in dict.fromkeys([*(stage.rule for stage in stages), *facts]):
        stage = next((stage for stage in stages if stage.rule == rule), None)
        fact = facts.get(rule)
        seconds = stage.seconds if stage else None
        # What has run in part is compared with its part.
        part = seconds * fact.jobs / stage.jobs if seconds is not None and fact else None
        rows.append(
            {
                "rule": rule,
                **({"jobs": stage.jobs, "seconds": seconds, "memory_mb": stage.memory} if stage else {}),
                **({"gpu_memory_mb": stage.gpu_memory, "disk_mb": stage.disk} if stage else {}),
                **({f"{name}_run": value for name, value in fact._asdict().items()} if fact else {}),
                **({"ratio": part / fact.seconds} if part is not None and fact.seconds else {}),
            }
        )
    return rows


def total(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The row of totals; its `ratio` is of the rules that were both forecast and run."""
    summed: dict[str, Any] = {"rule": "total"}
    for key in ("jobs", "seconds", "disk_mb", "jobs_run", "seconds_run", "processor_run"):
        summed[key] = sum(row.get(key) or 0 for row in rows)
    both = [row for row in rows if "ratio" in row]
    if both:
        took = sum(row["seconds_run"] for row in both)
        summed["ratio"] = sum(row["ratio"] * row["seconds_run"] for row in both) / took
    return summed


def render(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a text table, with a last one of totals; what is not known is a dash."""
    shown = {key: title for key, title in COLUMNS.items() if any(row.get(key) for row in rows)}
    lines = [[title for title in shown.values()]]
    lines += [[_cell(row.get(key)) for key in shown] for row in [*rows, total(rows)]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
    return "-" if value is None else str(value)

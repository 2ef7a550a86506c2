"""Forecast beside the machine and beside fact."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.plan.forecast import Forecast

MINUTES = 600
"""From so many on, hours are enough."""
DASH = "–"


def duration(seconds: float) -> str:
    """`2 min 5 s`, or `0.4 s`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < MINUTES else f"{seconds / 3600:,.0f} h"


COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "jobs": ("jobs", "{:,}".format),
    "seconds": ("forecast", duration),
    "elapsed": ("on the workers", duration),
    "seconds_run": ("took", duration),
    "ratio": ("forecast / took", "{:.2f}".format),
    "processor_run": ("processor", duration),
    "jobs_run": ("jobs run", "{:,}".format),
    "disk_mb": ("disk", "{:,.0f} MB".format),
    "memory_mb": ("memory asked for", "{:,.0f} MB".format),
    "memory_run": ("largest job", "{:,.0f} MB".format),
    "gpu_memory_mb": ("of a GPU", "{:,.0f} MB".format),
}
"""Key in a row of `compare` -> heading, and how a value is written."""


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


def compare(stages: Sequence[Forecast], facts: Mapping[str, Fact]) -> list[dict[str, Any]]:
    """One row for each rule that was forecast or has run; `ratio` is forecast over fact in seconds, where both are."""
    planned = {stage.rule: stage for stage in stages}
    rows = []
    for rule in dict.fromkeys([*planned, *facts]):
        row, stage, fact = {"rule": rule}, planned.get(rule), facts.get(rule)
        if stage:
            row |= {"jobs": stage.jobs, "seconds": stage.seconds, "memory_mb": stage.memory}
            row |= {"gpu_memory_mb": stage.gpu_memory, "disk_mb": stage.disk}
        if fact:
            row |= {f"{name}_run": value for name, value in fact._asdict().items()}
        if stage and fact and stage.seconds is not None and fact.seconds:
            row["ratio"] = stage.seconds * fact.jobs / stage.jobs / fact.seconds  # what has run in part, with its part
        rows.append(row)
    return rows


def elapsed(row: Mapping[str, Any], workers: int) -> float | None:
    """Seconds of a rule whose jobs run so many at a time; None where it is not forecast."""
    return None if row["seconds"] is None else row["seconds"] / row["jobs"] * math.ceil(row["jobs"] / workers)


def total(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The row of totals; its `ratio` is of the rules that were both forecast and run."""
    keys = ("jobs", "seconds", "elapsed", "disk_mb", "jobs_run", "seconds_run", "processor_run")
    summed: dict[str, Any] = {"rule": "total", **{key: sum(row.get(key) or 0 for row in rows) for key in keys}}
    both = [row for row in rows if "ratio" in row]
    if both:
        took = sum(row["seconds_run"] for row in both)
        summed["ratio"] = sum(row["ratio"] * row["seconds_run"] for row in both) / took
    return summed


@dataclass(frozen=True)
class CostTable:
    """`headings`, and for each stage its name and cells; the last of `lines` is the total. `planned`: whether anything
    was forecast."""

    headings: Sequence[str]
    lines: Sequence[tuple[str, Sequence[str]]]
    planned: bool


def cost_table(rows: Sequence[Mapping[str, Any]]) -> CostTable | None:
    """The table of what `compare` gave; a column that no row has is left out. None where nothing is known."""
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


def render(table: CostTable) -> list[str]:
    """The lines of a text table."""
    lines = [("stage", table.headings), *table.lines]
    columns = zip(*((stage, *cells) for stage, cells in lines), strict=True)
    first, *others = (max(map(len, column)) for column in columns)
    return [
        "  ".join([stage.ljust(first), *(cell.rjust(width) for cell, width in zip(cells, others, strict=True))])
        for stage, cells in lines
    ]


REMEDIES = {
    "ingest": "split the collection", "extract": "shard_size or extract.batch_size",
    "accumulate": "text.size or the encoders", "fit": "text.size or the encoders",
    "build_index": "fit.dimensions or index.splits",
}  # fmt: skip
"""Rule -> what to change where a job of it does not fit into memory; `shard_size` for the others."""


def misfits(stages: Sequence[Forecast], memory: float, gpu_memory: float, disk: float) -> list[str]:
    """One sentence for each thing that does not fit into the free `memory`, `gpu_memory` and `disk` (MB; 0: unknown),
    with the key to change."""
    found, total = [], sum(stage.disk for stage in stages)
    for stage in stages:
        if 0 < memory < stage.memory:
            change = f"{REMEDIES.get(stage.rule, 'shard_size')}, or run it on a larger machine"
            found.append(
                f"{stage.rule} needs {stage.memory:,.0f} MB of memory and {memory:,.0f} are free; change {change}"
            )
        if 0 < gpu_memory < stage.gpu_memory:
            change = "extract.batch_size, or set device to cpu"
            found.append(
                f"{stage.rule} needs {stage.gpu_memory:,.0f} MB of the GPU of {gpu_memory:,.0f}; change {change}"
            )
    if 0 < disk < total:
        change = "results_root, or text.size and the encoders, whose moments take the most"
        found.append(f"artefacts need {total:,.0f} MB of disk and {disk:,.0f} are free; change {change}")
    return found

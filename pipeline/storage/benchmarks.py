"""Snakemake's measurements of every job: `<folder>/<rule>/**/*.tsv`, one line with seconds and memory.

These files are Snakemake's and have no commit: a damaged one is left out with a warning.
"""

import csv
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import IntegrityError

log = logging.getLogger(__name__)


class MeasuredJob(NamedTuple):
    """Wall and `processor` seconds of one job, and its peak memory in MB."""

    seconds: float
    processor: float
    memory: float


def read_benchmarks(folder: Path) -> dict[str, list[MeasuredJob]]:
    """Rule -> its jobs that have run. Raises IntegrityError if there are none."""
    rules: dict[str, list[MeasuredJob]] = {}
    for path in sorted(Path(folder).rglob("*.tsv")):
        if jobs := _read_jobs(path):
            rules.setdefault(path.relative_to(folder).parts[0], []).extend(jobs)
    if not rules:
        raise IntegrityError(f"{folder} holds no benchmark; give the folder benchmarks/ of a run that has begun")
    return rules


def add_up(recorded: Mapping[str, Sequence[MeasuredJob]]) -> list[dict[str, Any]]:
    """A row for each rule: its jobs, their wall and processor seconds together, and the memory of the largest in MB."""
    return [
        {
            "rule": rule,
            "jobs": len(jobs),
            "seconds": sum(job.seconds for job in jobs),
            "processor": sum(job.processor for job in jobs),
            "memory_mb": max(job.memory for job in jobs),
        }
        for rule, jobs in recorded.items()
    ]


def read_part_jobs(folder: Path) -> dict[str, list[MeasuredJob]]:
    """Name -> the jobs that made its parts, from `<folder>/<name>.<part>.tsv`."""
    parts: dict[str, list[MeasuredJob]] = {}
    for path in sorted(Path(folder).glob("*.*.tsv")):
        parts.setdefault(path.name.rsplit(".", 2)[0], []).extend(_read_jobs(path))
    return parts


def _read_jobs(path: Path) -> list[MeasuredJob]:
    """The jobs in one file; none, and a warning, if it cannot be read."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        if not rows:
            raise ValueError("it has no job")
        return [MeasuredJob(*(_number(row[column]) for column in ("s", "cpu_time", "max_rss"))) for row in rows]
    except (OSError, csv.Error, KeyError, TypeError, ValueError) as error:
        log.warning("%s is not a benchmark of Snakemake's (%s); it is left out, delete it", path, error)
        return []


def _number(text: str) -> float:
    """Jobs of less than half a second have no measurements but their wall time."""
    number = 0.0 if text in ("-", "NA") else float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number

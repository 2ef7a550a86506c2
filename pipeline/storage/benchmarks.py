"""Snakemake's measurements of every job: `<folder>/<rule>/**/*.tsv`, one line with seconds and memory.

These files are Snakemake's and have no commit: a damaged one is left out with a warning.
"""

import csv
import io
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import IntegrityError
from pipeline.storage.files import explain, read_bytes, walk

log = logging.getLogger(__name__)


class MeasuredJob(NamedTuple):
    """Wall and `processor` seconds of one job, and its peak memory in MB."""

    seconds: float
    processor: float
    memory: float


def read_benchmarks(folder: Path) -> dict[str, list[MeasuredJob]]:
    """Rule -> its jobs that have run. Raises IntegrityError if there are none."""
    found: dict[str, list[MeasuredJob]] = {}
    for path in _files(Path(folder)):
        if jobs := _jobs(path):
            found.setdefault(path.relative_to(folder).parts[0], []).extend(jobs)
    if not found:
        raise IntegrityError(f"{folder} holds no benchmark; give the folder benchmarks/ of a run that has begun")
    return found


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
    found: dict[str, list[MeasuredJob]] = {}
    for path in _files(Path(folder)):
        if path.parent == Path(folder) and path.name.count(".") > 1:
            found.setdefault(path.name.rsplit(".", 2)[0], []).extend(_jobs(path))
    return found


def _files(folder: Path) -> list[Path]:
    """The .tsv files under `folder`; logs a warning for each unreadable folder."""
    found = []
    for path, status in walk(folder):
        if isinstance(status, OSError):
            log.warning("%s; its benchmarks are left out", explain(path, status))
        elif path.suffix == ".tsv":
            found.append(path)
    return sorted(found)


def _jobs(path: Path) -> list[MeasuredJob]:
    """The jobs in one file; none, and a warning, if it cannot be read."""
    try:
        text = read_bytes(path, "delete it").decode("utf-8")
        rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t"))
        if not rows:
            raise ValueError("it has no job")
        return [MeasuredJob(*(_number(row[column]) for column in ("s", "cpu_time", "max_rss"))) for row in rows]
    except (IntegrityError, csv.Error, KeyError, TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, IntegrityError) else f"{path} is not a benchmark of Snakemake's"
        log.warning("%s; it is left out, delete it", reason)
        return []


def _number(text: str) -> float:
    """Jobs of less than half a second have no measurements but their wall time."""
    number = 0.0 if text in ("-", "NA") else float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number

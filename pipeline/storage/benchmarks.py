"""What Snakemake measured of every job: `<folder>/<rule>/**/*.tsv`, one line with seconds and memory."""

import csv
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import IntegrityError


class Job(NamedTuple):
    """Wall and `processor` seconds of one job, and its greatest memory in MB."""

    seconds: float
    processor: float
    memory: float


def read_benchmarks(folder: Path) -> dict[str, list[Job]]:
    """Rule -> its jobs that have run here.

    Raises IntegrityError for a folder without any, and naming a file that is not one of them.
    """
    found: dict[str, list[Job]] = {}
    for path in sorted(Path(folder).rglob("*.tsv")):
        found.setdefault(path.relative_to(folder).parts[0], []).extend(_jobs(path))
    if not found:
        raise IntegrityError(f"{folder} holds no benchmark; give the folder benchmarks/ of a run that has begun")
    return found


def read_shard_jobs(folder: Path) -> dict[str, list[Job]]:
    """Name -> the jobs that have made its shards: what stands in `<folder>/<name>.<shard>.tsv`."""
    found: dict[str, list[Job]] = {}
    for path in sorted(Path(folder).glob("*.*.tsv")):
        found.setdefault(path.name.rsplit(".", 2)[0], []).extend(_jobs(path))
    return found


def _jobs(path: Path) -> list[Job]:
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    try:
        return [Job(*(_number(row[column]) for column in ("s", "cpu_time", "max_rss"))) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path} is no benchmark of Snakemake's; delete it") from error


def _number(text: str) -> float:
    """A job that ends within half a second has only its wall time measured."""
    return 0.0 if text in ("-", "NA") else float(text)

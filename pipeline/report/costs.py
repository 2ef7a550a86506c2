"""What the stages of a run have cost, as Snakemake has measured them."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.errors import InputError


@dataclass(frozen=True)
class Cost:
    """A rule's jobs together: wall and processor seconds, and the greatest memory (MiB) of one of them."""

    rule: str
    jobs: int
    seconds: float
    processor: float
    memory: float


def add_up(measured: Iterable[tuple[str, str, str]]) -> Sequence[Cost]:
    """The costs of rules, the longest first, from (rule, name, text) of benchmark files of Snakemake.

    Raises InputError for a file that is not one.
    """
    jobs: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for rule, name, text in measured:
        for row in csv.DictReader(io.StringIO(text), delimiter="\t"):
            try:
                jobs[rule].append(tuple(_number(row[column]) for column in ("s", "cpu_time", "max_rss")))
            except (KeyError, TypeError, ValueError):
                raise InputError(f"{name} is not a benchmark file of Snakemake; remove it") from None
    costs = [
        Cost(rule, len(rows), sum(r[0] for r in rows), sum(r[1] for r in rows), max(r[2] for r in rows))
        for rule, rows in jobs.items()
    ]
    return sorted(costs, key=lambda cost: -cost.seconds)


def _number(text: str) -> float:
    """Snakemake writes - or NA where a job was too short to be watched."""
    return 0.0 if text in ("-", "NA") else float(text)

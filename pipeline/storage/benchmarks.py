"""What Snakemake measured of every job: `<folder>/<rule>/**/*.tsv`, one line with seconds and memory."""

import csv
from pathlib import Path

from pipeline.errors import IntegrityError


def read_benchmarks(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Rule -> (seconds, greatest memory in MB) of each of its jobs that have run here.

    Raises IntegrityError for a folder without any, and naming a file that is not one of them.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for path in sorted(Path(folder).rglob("*.tsv")):
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        try:
            jobs = [(float(row["s"]), _number(row["max_rss"])) for row in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise IntegrityError(f"{path} is no benchmark of Snakemake's; delete it") from error
        found.setdefault(path.relative_to(folder).parts[0], []).extend(jobs)
    if not found:
        raise IntegrityError(f"{folder} holds no benchmark; give the folder benchmarks/ of a run that has begun")
    return found


def _number(text: str) -> float:
    """A job that ends within half a second has no memory measured."""
    return 0.0 if text in ("-", "NA") else float(text)

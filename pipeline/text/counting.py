"""How many sentences have each term, in memory that does not grow with the terms: counts in files, which DuckDB adds
up."""

import errno
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.text.tokens import TermSettings, make_analyzer

HELD = 1 << 20
"""Different terms that are counted in memory, about 250 MB of them, before they go into a file."""
COUNTS = pa.schema([("term", pa.string()), ("count", pa.int64())])
TOTALS = "SELECT term, sum(count)::BIGINT AS total FROM read_parquet($files) GROUP BY term"


@dataclass(frozen=True)
class TermCounts:
    """Of `n` sentences: Parquet `files` of terms, each with the number of sentences that have it. The counts that
    several files have of a term add up."""

    n: int
    files: tuple[Path, ...]

    def __add__(self, other: "TermCounts") -> "TermCounts":
        return TermCounts(self.n + other.n, self.files + other.files)

    def most_common(self, size: int, min_count: int) -> list[tuple[str, int]]:
        """The `size` terms that most sentences have, at least `min_count`, and how many; ties are alphabetical."""
        chosen = f"{TOTALS} HAVING total >= $least ORDER BY total DESC, term LIMIT $size"
        return self._query(chosen, least=min_count, size=size)

    def all(self) -> dict[str, int]:
        """Every term, in ascending order, and how many sentences have it."""
        return dict(self._query(f"{TOTALS} ORDER BY term"))

    def _query(self, query: str, **parameters: int) -> list[tuple[str, int]]:
        """Raises OSError where there is no room for what does not fit into memory."""
        spilled = str(self.files[0].parent / "spilled")
        settings: dict[str, str | bool | int | float | list[str]] = {"memory_limit": "1GB", "temp_directory": spilled}
        files = list(map(str, self.files))
        try:
            with duckdb.connect(":memory:", config=settings) as connection:
                return connection.execute(query, {"files": files, **parameters}).fetchall()
        except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
            raise OSError(errno.ENOSPC, str(error)) from error


def count_terms(sentences: Iterable[str], settings: TermSettings, folder: Path) -> TermCounts:
    """The terms of `sentences`, in new files of the `folder`."""
    analyze = make_analyzer(settings)
    n = 0
    counts: Counter[str] = Counter()
    files: list[Path] = []

    def write() -> None:
        files.append(folder / f"{uuid4()}.parquet")
        pq.write_table(pa.table([list(counts), list(counts.values())], schema=COUNTS), files[-1])
        counts.clear()

    for sentence in sentences:
        counts.update(set(analyze(sentence)))
        n += 1
        if len(counts) >= HELD:
            write()
    write()
    return TermCounts(n, tuple(files))

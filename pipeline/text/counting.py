"""Counts the sentences that contain each term. The results are kept in files, so that the memory stays bounded."""

import errno
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.text.tokens import PIECE, TermSettings, make_analyzer

MAX_TERMS_IN_MEMORY = 1 << 20
"""Number of different terms whose counts are kept in memory, about 250 MB, before the counts are written to a file."""
COUNTS_SCHEMA = pa.schema([("term", pa.string()), ("count", pa.int64())])
TOTALS_QUERY = "SELECT term, sum(count)::BIGINT AS total FROM read_parquet($files) GROUP BY term"
"""The SQL query that sums the counts of each term over all files."""


@dataclass(frozen=True)
class TermCounts:
    """The document frequencies of the terms in `n` sentences.

    Each of the Parquet `files` has the columns `term` and `count`. The frequency of a term is the sum of its counts in
    all files.
    """

    n: int
    files: tuple[Path, ...]

    def __add__(self, other: "TermCounts") -> "TermCounts":
        return TermCounts(self.n + other.n, self.files + other.files)

    def most_common(self, size: int, min_count: int, pieces: bool = False) -> list[tuple[str, int]]:
        """Return the `size` most frequent terms with their frequencies, in falling order. Ties are alphabetical.

        Terms in fewer than `min_count` sentences are ignored. Only pieces of words are returned if `pieces` is true,
        and only other terms if it is false.
        """
        chosen = (
            f"{TOTALS_QUERY} HAVING total >= $least AND starts_with(term, $piece) = $pieces"
            " ORDER BY total DESC, term LIMIT $size"
        )
        return self._query(chosen, least=min_count, size=size, piece=PIECE, pieces=pieces)

    def all(self) -> dict[str, int]:
        """Return term -> frequency for every term, including pieces of words, in alphabetical order."""
        return dict(self._query(f"{TOTALS_QUERY} ORDER BY term"))

    def _query(self, query: str, **parameters: int | str) -> list[tuple[str, int]]:
        """Run a query over the files of counts, and return its rows (term, count). Raises OSError with the code ENOSPC
        if DuckDB reports a lack of memory or a fault of the disk, because the disk then usually has no room for data
        that do not fit into memory."""
        spilled = str(self.files[0].parent / "spilled")
        settings: dict[str, str | bool | int | float | list[str]] = {"memory_limit": "1GB", "temp_directory": spilled}
        files = list(map(str, self.files))
        try:
            with duckdb.connect(":memory:", config=settings) as connection:
                return connection.execute(query, {"files": files, **parameters}).fetchall()
        except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
            raise OSError(errno.ENOSPC, str(error)) from error


def count_terms(sentences: Iterable[str], settings: TermSettings, folder: Path) -> TermCounts:
    """Split `sentences` into terms by `settings`, and count the sentences that contain each term. The counts are
    written to one or more new Parquet files in `folder`, which must exist as long as the result is used."""
    analyze = make_analyzer(settings)
    n = 0
    counts: Counter[str] = Counter()
    files: list[Path] = []

    def write() -> None:
        files.append(folder / f"{uuid4()}.parquet")
        pq.write_table(pa.table([list(counts), list(counts.values())], schema=COUNTS_SCHEMA), files[-1])
        counts.clear()

    for sentence in sentences:
        counts.update(set(analyze(sentence)))
        n += 1
        if len(counts) >= MAX_TERMS_IN_MEMORY:
            write()
    write()
    return TermCounts(n, tuple(files))

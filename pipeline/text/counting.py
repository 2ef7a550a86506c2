"""How many sentences have each term, in memory that does not grow with the terms: sorted counts in files, which are
merged two and two."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import mkstemp
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.text.tokens import TermSettings, make_analyzer

HELD = 1 << 20
"""Different terms that are counted in memory, about 250 MB of them, before they go into a file."""
ROWS = 1 << 16
"""Terms of a file that are read at once."""
COUNTS = pa.schema([("term", pa.string()), ("count", pa.int64())])


class TermCounts(NamedTuple):
    """Of `n` sentences: a file of their `terms`, each with the number of sentences that have it, in ascending order,
    each once. The `spent` files were merged into it."""

    n: int
    terms: Path
    spent: tuple[Path, ...] = ()


def count_terms(sentences: Iterable[str], settings: TermSettings, folder: Path) -> TermCounts:
    """The terms of `sentences`, in a new file of the `folder`."""
    n, parts = 0, []
    analyze, counts = make_analyzer(settings), Counter()
    for sentence in sentences:
        counts.update(set(analyze(sentence)))
        n += 1
        if len(counts) >= HELD:
            parts.append(_write_counts(counts, folder))
            counts.clear()
    total = _write_counts(counts, folder)
    for part in parts:
        total = merge_counts(part, total)
        _remove(total.spent)
    return total._replace(n=n, spent=())


def merge_counts(left: TermCounts, right: TermCounts) -> TermCounts:
    """Both together, in a new file beside that of `left`; holds a few thousand terms at a time.

    Removes what was merged into either, and not their own files: a worker that is lost on the way has to find them.
    """
    _remove(left.spent + right.spent)
    terms = _write(_merge(left.terms, right.terms), left.terms.parent)
    return TermCounts(left.n + right.n, terms, (left.terms, right.terms))


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def most_common(counts: TermCounts, size: int, min_count: int) -> list[tuple[str, int]]:
    """The `size` terms that most sentences have, at least `min_count`, and how many; ties are alphabetical."""
    best = COUNTS.empty_table()
    for batch in _read(counts.terms):
        common = batch.filter(pc.greater_equal(batch["count"], min_count))
        best = pa.concat_tables([best, common]).sort_by([("count", "descending"), ("term", "ascending")])[:size]
    return list(zip(best["term"].to_pylist(), best["count"].to_pylist(), strict=True))


def all_counts(counts: TermCounts) -> dict[str, int]:
    """Every term, in ascending order, and how many sentences have it."""
    found: dict[str, int] = {}
    for batch in _read(counts.terms):
        found.update(zip(batch["term"].to_pylist(), batch["count"].to_pylist(), strict=True))
    return found


def _write_counts(counts: Counter[str], folder: Path) -> TermCounts:
    table = pa.table([list(counts), list(counts.values())], schema=COUNTS)
    return TermCounts(0, _write([table.sort_by("term")], folder))


def _merge(left: Path, right: Path) -> Iterator[pa.Table]:
    """The terms of two files in order, with the sums of their counts."""
    sides, held = [_read(left), _read(right)], [COUNTS.empty_table()] * 2
    while True:
        held = [one if len(one) else next(side, one) for one, side in zip(held, sides, strict=True)]
        if not all(map(len, held)):
            break
        last = min(one["term"][-1].as_py() for one in held)
        cuts = [pc.sum(pc.less_equal(one["term"], last)).as_py() for one in held]
        both = pa.concat_tables(one[:cut] for one, cut in zip(held, cuts, strict=True))
        yield both.group_by("term").aggregate([("count", "sum")]).rename_columns(COUNTS.names).sort_by("term")
        held = [one[cut:] for one, cut in zip(held, cuts, strict=True)]
    for one, side in zip(held, sides, strict=True):
        yield one
        yield from side


def _read(path: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as batches:
        for batch in batches:
            yield pa.Table.from_batches([batch])


def _write(tables: Iterable[pa.Table], folder: Path) -> Path:
    """A new file of `folder` with all rows of the tables."""
    opened, path = mkstemp(".counts", dir=folder)
    os.close(opened)
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, COUNTS) as stream:
        for table in tables:
            stream.write_table(table, ROWS)
    return Path(path)

"""How many sentences have each term, in memory that does not grow with the terms: sorted counts in files, which are
merged two and two."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkstemp
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.text.tokens import TermSettings, find_lemma, make_analyzer

HELD = 1 << 20
"""Different terms that are counted in memory, about 250 MB of them, before they go into a file."""
ROWS = 1 << 16
"""Terms of a file that are read at once."""
COUNTS = pa.schema([("term", pa.string()), ("count", pa.int64())])


class TermCounts(NamedTuple):
    """Of `n` sentences: files of their `terms`, each with the number of sentences that have it, and of the `words` that
    were looked up for their lemmas. Both are in ascending order, each term once. The `spent` files were merged into
    these."""

    n: int
    terms: Path
    words: Path
    spent: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, Path]:
        return self.terms, self.words


def count_terms(sentences: Iterable[str], settings: TermSettings, folder: Path) -> TermCounts:
    """The terms of `sentences`, in new files of the `folder`."""
    seen, n, parts = _Seen(), 0, []
    analyze, counts = make_analyzer(replace(settings, lemmas=seen)), Counter()
    for sentence in sentences:
        counts.update(set(analyze(sentence)))
        n += 1
        if max(len(counts), len(seen)) >= HELD:
            parts.append(_write_counts(counts, seen, folder))
            counts.clear()
            seen.clear()
    total = _write_counts(counts, seen, folder)
    for part in parts:
        total = merge_counts(part, total)
        _remove(total.spent)
    return total._replace(n=n, spent=())


def merge_counts(left: TermCounts, right: TermCounts) -> TermCounts:
    """Both together, in new files beside those of `left`; holds a few thousand terms at a time.

    Removes what was merged into either, and not their own files: a worker that is lost on the way has to find them.
    """
    _remove(left.spent + right.spent)
    terms, words = (_write(_merge(one, other), one.parent) for one, other in zip(left.files, right.files, strict=True))
    return TermCounts(left.n + right.n, terms, words, left.files + right.files)


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


def lemmas(counts: TermCounts) -> Iterator[tuple[str, str]]:
    """Each word that was looked up, in ascending order, with its lemma."""
    for batch in _read(counts.words):
        for word in batch["term"].to_pylist():
            yield word, find_lemma(word)


class _Seen(dict[str, str]):
    """The lemmas of all words that were asked for."""

    def get(self, word: str) -> str:
        if word not in self:
            self[word] = find_lemma(word)
        return self[word]


def _write_counts(counts: Counter[str], seen: Iterable[str], folder: Path) -> TermCounts:
    words = list(seen)
    tables = ([list(counts), list(counts.values())], [words, [1] * len(words)])
    terms, words = (_write([pa.table(one, schema=COUNTS).sort_by("term")], folder) for one in tables)
    return TermCounts(0, terms, words)


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

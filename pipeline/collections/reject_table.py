"""What is left out of a collection: a table in the order of `rejects.jsonl`, and what there is to say of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

import pyarrow as pa

from pipeline.collections.records import Reject
from pipeline.disk_tables import DiskTables

GIVEN, FAULTY, UNUSABLE, SENTENCES, DOCUMENTS, BOXES = range(6)
"""Stages in their order: what intake leaves out, then images with a fault in a list, other images, and what belongs to
an image. Within a stage, rejects are in the order of the records."""
STAGE_BITS = 56
LISTED = {
    "rejects": pa.schema(
        [("place", pa.int64()), ("what", pa.string()), ("head", pa.string())]
        + [("file", pa.binary()), ("row", pa.int64()), ("reason", pa.binary())]
    )
}
"""`head` is the reason up to its colon; names and reasons may hold lone surrogates, which are not UTF-8."""


@dataclass(frozen=True)
class RejectSummary:
    """How many rejects there are of each kind and (up to its colon) reason, in the order in which they came first, and
    the most frequent whole reason of the images with its count, where none is kept."""

    counts: Mapping[tuple[str, str], int]
    images: tuple[str, int] | None = None

    def of(self, what: str, *first_words: str) -> int:
        """How many of a kind have a reason that begins so."""
        return sum(n for (kind, head), n in self.counts.items() if kind == what and head.startswith(first_words))

    def most_frequent(self, what: str) -> tuple[str, int]:
        """The most frequent reason of a kind, and its count."""
        return max(((head, n) for (kind, head), n in self.counts.items() if kind == what), key=itemgetter(1))


class RejectTable:
    """The rejects in `tables`; iterating gives them in order."""

    def __init__(self, tables: DiskTables) -> None:
        self._tables = tables

    def add(self, seq: int, reject: Reject, stage: int = GIVEN) -> None:
        """Of the record `seq`."""
        file, row, what, reason = reject
        head = reason.partition(":")[0].encode("utf-8", "backslashreplace").decode()
        row = (stage << STAGE_BITS | seq, what, head, to_bytes(file), row, to_bytes(reason))
        self._tables.append("rejects", row)

    def __iter__(self) -> Iterator[Reject]:
        if self._tables.has_rows("rejects"):
            for batch in self._tables.in_order("rejects", ("place",), "file, row, what, reason"):
                for file, row, what, reason in _rows(batch):
                    yield Reject(to_text(file), row, what, to_text(reason))

    def summarise(self, none_kept: bool) -> RejectSummary:
        """With the reason of the images if there is `none_kept`: all of their reasons are counted for it."""
        if not self._tables.has_rows("rejects"):
            return RejectSummary({})
        heads = self._tables.each("SELECT what, head, count(*) FROM rejects GROUP BY ALL ORDER BY min(place)")
        counts = {(what, head): count for batch in heads for what, head, count in _rows(batch)}
        if not none_kept:
            return RejectSummary(counts)
        images = self._tables.each(
            "SELECT reason, count(*) FROM rejects WHERE what = 'images' GROUP BY ALL"
            " ORDER BY count(*) DESC, min(place) LIMIT 1"
        )
        return RejectSummary(counts, *((to_text(reason), count) for batch in images for reason, count in _rows(batch)))


def _rows(batch: pa.RecordBatch) -> Iterator[tuple]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")

"""What is left out of a collection: a table in the order of `rejects.jsonl`, and what there is to say of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

import pyarrow as pa

from pipeline.collections.records import Reject
from pipeline.collections.tables import Tables, to_bytes, to_text

GIVEN, FAULTY, UNUSABLE, SENTENCES, DOCUMENTS, BOXES = (stage << 56 for stage in range(6))
"""Places at which rejects begin: what intake leaves out, then images with a fault in a list, other images, and what
belongs to an image. From there on they are in the order of the records."""
REJECTS = {
    "rejects": pa.schema(
        [("place", pa.int64()), ("what", pa.string()), ("reason", pa.string()), ("name", pa.binary())]
        + [("file", pa.binary()), ("row", pa.int64())]
    )
}
"""Where there is a `name`, the `reason` has a place for it, `{!r}`."""
HEAD = "split_part(reason, ':', 1)"


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


class Rejects:
    """The rejects in `tables`; iterating gives them in order."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def add(self, seq: int, reject: Reject) -> None:
        """What a reader cannot use of the record `seq`."""
        reason = reject.reason.encode("utf-8", "backslashreplace").decode()
        self._tables.append("rejects", (GIVEN + seq, reject.what, reason, None, to_bytes(reject.file), reject.row))

    def __iter__(self) -> Iterator[Reject]:
        rows = self._tables.rows('SELECT file, "row", what, reason, name FROM rejects ORDER BY place')
        for file, row, what, reason, name in rows:
            yield Reject(to_text(file), row, what, reason if name is None else reason.format(to_text(name)))

    def summarise(self, none_kept: bool) -> RejectSummary:
        """With the reason of the images if there is `none_kept`."""
        heads = f"SELECT what, {HEAD}, count(*) FROM rejects GROUP BY ALL ORDER BY min(place)"
        counts = {(what, head): count for what, head, count in self._tables.rows(heads)}
        images = (
            "SELECT reason, name, count(*) FROM rejects WHERE what = 'images' GROUP BY ALL"
            " ORDER BY count(*) DESC, min(place) LIMIT 1"
        )
        for reason, name, count in self._tables.rows(images) if none_kept else ():
            return RejectSummary(counts, (reason if name is None else reason.format(to_text(name)), count))
        return RejectSummary(counts)

"""The records of a collection, one for each image, sentence, document, box or row that its files contain.

Readers in `formats` check only the shape of a row, and `intake` checks the rest. `file` and `row` (from 1, None if a
file has no rows) locate a record for the person who must repair it. Records are tuples instead of dataclasses because a
million images bring some twenty million records.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from pipeline.config.collection import CollectionSettings

DIVIDED = "divided"
"""The split of an image for which the collection names no split. Assembly decides it."""
MAX_PRINTED_REASONS = 20
"""Number of reasons that are printed."""
NOT_UTF8 = "not UTF-8"
"""The reason to reject bytes that are not text."""


class ImageRecord(NamedTuple):
    """An image. Its texts refer to it by `key`. `offset` and `size` in bytes locate a member of a tar shard. An image
    that is only `implied`, by a text or a further row, counts only if no record before has named it."""

    key: str
    path: str
    split: str
    file: str
    row: int | None = None
    member: str | None = None
    offset: int | None = None
    size: int | None = None
    implied: bool = False


class SentenceRecord(NamedTuple):
    """A sentence of the image `key`, whose record comes before. `number` orders the sentences of an image, and None
    means the next number."""

    key: str
    number: int | None
    text: str
    file: str
    row: int | None = None


class DocumentRecord(NamedTuple):
    """The weak text of the image `key`. Commas separate tags, and missing fields are empty. An `implied` document
    counts only with the image record before it."""

    key: str
    title: str
    tags: str
    description: str
    file: str
    row: int | None = None
    implied: bool = False


class BoxRecord(NamedTuple):
    """A detection in the image `key`: corners in pixels of the upright image, score and label."""

    key: str
    x1: float
    y1: float
    x2: float
    y2: float
    score: float
    label: str
    file: str
    row: int | None = None


class ColumnsRecord(NamedTuple):
    """Further `values` of the image `key`, by the names of the user's own columns."""

    key: str
    values: Mapping[str, object]
    file: str
    row: int | None = None


class Reject(NamedTuple):
    """A row that cannot be used. `what` is one of images, sentences, documents, boxes, columns."""

    file: str
    row: int | None
    what: str
    reason: str


KeyedRecord = ImageRecord | SentenceRecord | DocumentRecord | BoxRecord | ColumnsRecord
Record = KeyedRecord | Reject


@dataclass
class Tally:
    """Counts of the files of a collection and the members of its shards: `given` is `read` plus all that are `left_out`
    by their reason. `notes` count rows that a reader treated in an unusual way."""

    given: int = 0
    read: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    def add(self, reason: str | None) -> None:
        """Count a file that is ignored for this reason, or a file that is read (None)."""
        self.given += 1
        if reason is None:
            self.read += 1
        else:
            self.left_out[reason] += 1

    def describe(self) -> Iterator[str]:
        """Yield lines for the user about files that were read and ignored."""
        if left_out := self.left_out.total():
            yield f"{self.given:,} files: {self.read:,} read, {left_out:,} left out"
            yield from (
                f"  {count:,} left out: {reason}" for reason, count in self.left_out.most_common(MAX_PRINTED_REASONS)
            )
            if rest := sum(count for _, count in self.left_out.most_common()[MAX_PRINTED_REASONS:]):
                yield f"  {rest:,} left out for other reasons, which manifest.json lists"
        yield from (f"{count:,} {note}" for note, count in self.notes.items() if count)

    def counts(self) -> dict[str, int]:
        left_out = self.left_out.total()
        return {"given": self.given, "kept": self.read, "rejected": 0, "duplicate": 0, "left_out": left_out}


@dataclass(frozen=True)
class Options:
    """The settings of the section `collection` that readers need. Readers count in the `tally`."""

    files: Mapping[str, str]
    columns: Mapping[str, str]
    default_split: str
    follow_links: bool = False
    own_columns: Collection[str] | None = None
    exclude: tuple[str, ...] = ()
    tally: Tally = field(default_factory=Tally)

    @classmethod
    def from_settings(cls, chosen: CollectionSettings) -> Self:
        return cls(
            chosen.files, chosen.columns, chosen.default_split, chosen.follow_links, chosen.kept_columns, chosen.exclude
        )

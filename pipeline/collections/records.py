"""The records of a collection: one for each image, sentence, weak text, box or row in its files.

Readers in `formats` only check the structure of a row, and `intake` checks its content. `file` and `row` (from 1, or
None if a file has no rows) are the location of a record, for messages. Records are tuples instead of dataclasses,
because a million images have some twenty million records.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from pipeline.config.collection import CollectionSettings

KIND_NAMES = {"images": "photos", "sentences": "captions", "documents": "weak texts", "boxes": "boxes"}
"""Kind of record -> its name for users."""
DIVIDED = "divided"
"""The split of an image to which the collection does not assign a split. Assembly replaces it."""
MAX_PRINTED_REASONS = 20
"""Largest number of reasons for ignoring files that `Tally.format_summary` lists. All further reasons are counted in
one line."""
NOT_UTF8 = "not UTF-8"
"""The beginning of the reason for rejecting bytes that are not text in UTF-8."""


class ImageRecord(NamedTuple):
    """An image.

    Other records refer to it by `key`. `path` is the path of the photo, or of the shard that contains it as `member`.
    `offset` and `size` in bytes are the location of a member of a tar shard. In a Parquet file, `offset` is the row of
    the photo, from 0. `split` is the split that the collection gives the image, or DIVIDED. An `implied` image, which
    only a text or a further row mentions, is ignored if an earlier record has named it.
    """

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
    """A sentence of the image `key`. The record of the image precedes this record.

    `number` decides the position of the sentence among the sentences of the image. If it is None, the sentences are in
    the order of their records.
    """

    key: str
    number: int | None
    text: str
    file: str
    row: int | None = None


class DocumentRecord(NamedTuple):
    """The weak text of the image `key`.

    Commas separate tags, and missing fields are empty. An `implied` document is only used if the record directly before
    it is the first that names its image.
    """

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
    """Values of the image `key` in the user's own columns, by the names of these columns in the collection."""

    key: str
    values: Mapping[str, object]
    file: str
    row: int | None = None


class Reject(NamedTuple):
    """A row, or a whole file if `row` is None, that cannot be used for this `reason`. `what` is the kind of record that
    it would have been: images, sentences, documents, boxes or columns."""

    file: str
    row: int | None
    what: str
    reason: str


KeyedRecord = ImageRecord | SentenceRecord | DocumentRecord | BoxRecord | ColumnsRecord
Record = KeyedRecord | Reject


@dataclass
class Tally:
    """Counts of the files of a collection and of the members of its shards.

    `read` is the number of files that were read, and `left_out` has the number of ignored files for each reason.
    `given` is the number of all these files. `notes` has lines for the user about unusual files or rows, with the
    number of each.
    """

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

    def format_summary(self) -> Iterator[str]:
        """Yield lines for the user: the numbers of files that were read and ignored, unless none was ignored, and the
        notes."""
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
    """The settings of the section `collection` that readers need. Readers count files in `tally`.

    `own_columns` has the names of the user's own columns to keep, or is None to keep all. The other attributes have the
    names and the meaning of the keys of the section.
    """

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

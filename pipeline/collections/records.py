"""The records of a collection, one for each thing that its files name.

Readers in `formats` report what they find and check only the shape of a row; `intake` checks the rest. `file` and `row`
(from 1, None if a file has no rows) locate a record, for whoever must repair it. Records are tuples rather than
dataclasses because a million images bring some twenty million of them.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from pipeline.config.collection import CollectionSettings

DIVIDED = "divided"  # the split of an image for which the collection names none: assembly decides
SHOWN = 20
"""Reasons that are printed."""
NOT_UTF8 = "not UTF-8"  # the reason to reject what is not text


class ImageRecord(NamedTuple):
    """An image. Its texts refer to it by `key`; `offset` and `size` in bytes locate a member of a tar shard. One
    that is only `implied`, by a text or one more row, counts only where no record before named it."""

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
    """A sentence of the image `key`, which was reported before; `number` orders the sentences of one image. None: it is
    the next."""

    key: str
    number: int | None
    text: str
    file: str
    row: int | None = None


class DocumentRecord(NamedTuple):
    """The weak text of the image `key`; commas separate tags, and missing fields are empty. One that is `implied`
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
    values: Mapping[str, Any]
    file: str
    row: int | None = None


class Reject(NamedTuple):
    """A row that cannot be used. `what` is one of images, sentences, documents, boxes, columns."""

    file: str
    row: int | None
    what: str
    reason: str


Record = ImageRecord | SentenceRecord | DocumentRecord | BoxRecord | ColumnsRecord | Reject


@dataclass
class Tally:
    """What becomes of the files of a collection and of the members of its shards, of which `given` = `read` + all that
    is `left_out`, by the reason; and `notes`: what a reader did with so many rows, to be said once."""

    given: int = 0
    read: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    def add(self, reason: str | None) -> None:
        """A file that is left out for this reason; None: one that is read."""
        self.given += 1
        if reason is None:
            self.read += 1
        else:
            self.left_out[reason] += 1

    def describe(self) -> Iterator[str]:
        """What was read and left out, in lines for the user."""
        if left_out := self.left_out.total():
            yield f"{self.given:,} files: {self.read:,} read, {left_out:,} left out"
            yield from (f"  {count:,} left out: {reason}" for reason, count in self.left_out.most_common(SHOWN))
            if rest := sum(count for _, count in self.left_out.most_common()[SHOWN:]):
                yield f"  {rest:,} left out for other reasons, which manifest.json lists"
        yield from (f"{count:,} {note}" for note, count in self.notes.items() if count)

    def counts(self) -> dict[str, int]:
        left_out = self.left_out.total()
        return {"given": self.given, "kept": self.read, "rejected": 0, "duplicate": 0, "left_out": left_out}


@dataclass(frozen=True)
class Options:
    """What a reader needs of the configuration's section `collection`. Readers count in the
    `tally`."""

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

"""What a collection consists of, one record for each thing that its files name.

Readers in `formats` report what they find and judge nothing but the shape of a row; `intake` judges the rest.
`file` and `row` (from 1, None where a file has no rows) say where a record stands, for the one who must repair it.
Records are tuples rather than dataclasses because a million images bring some twenty million of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

DIVIDED = "divided"
"""What a reader may call the split of images that the collection puts in none: assembly decides."""
NOT_UTF8 = "not UTF-8"
"""The reason to leave out what is not text, wherever that is noticed."""


class ImageRecord(NamedTuple):
    """An image. `key` is what its texts call it; `offset` and `size` in bytes locate a member of a tar shard."""

    key: str
    path: str
    split: str
    file: str
    row: int | None = None
    member: str | None = None
    offset: int | None = None
    size: int | None = None


class SentenceRecord(NamedTuple):
    """A sentence of the image `key`, which has been reported before; `number` orders those of one image."""

    key: str
    number: int
    text: str
    file: str
    row: int | None = None


class DocumentRecord(NamedTuple):
    """The weak text of the image `key`; tags are separated by commas, whatever is absent is empty."""

    key: str
    title: str
    tags: str
    description: str
    file: str
    row: int | None = None


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


class Reject(NamedTuple):
    """A row that is not even a record. `what` is one of images, sentences, documents, boxes."""

    file: str
    row: int | None
    what: str
    reason: str


Record = ImageRecord | SentenceRecord | DocumentRecord | BoxRecord | Reject


@dataclass(frozen=True)
class Options:
    """The keys of `collection` in the configuration that a reader needs."""

    files: Mapping[str, str]
    columns: Mapping[str, str]
    default_split: str
    follow_links: bool = False

"""The records of a collection, one for each thing that its files name.

Readers in `formats` report what they find and check only the shape of a row; `intake` checks the rest. `file` and `row`
(from 1, None if a file has no rows) locate a record, for whoever must repair it. Records are tuples rather than
dataclasses because a million images bring some twenty million of them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.remote.scratch import Scratch

DIVIDED = "divided"  # the split of an image for which the collection names none: assembly decides
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


@dataclass(frozen=True)
class Options:
    """What a reader needs of the configuration's section `collection`, and the `scratch` for what is remote."""

    files: Mapping[str, str]
    columns: Mapping[str, str]
    default_split: str
    follow_links: bool = False
    own_columns: Collection[str] | None = None
    scratch: Scratch | None = None

"""The first half of ingest: a collection's records in columns, with faults that need no look at the images.

A million images bring millions of sentences, so rows are packed into Arrow batches as they come.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pyarrow as pa

from pipeline.collections.own_columns import OwnColumns
from pipeline.collections.records import (
    DIVIDED,
    NOT_UTF8,
    BoxRecord,
    ColumnsRecord,
    DocumentRecord,
    ImageRecord,
    Record,
    Reject,
    SentenceRecord,
)
from pipeline.settings.section import SPLITS

BATCH = 1 << 16
LARGEST_NUMBER = (1 << 31) - 1
SOURCE = {"file": pa.int32(), "row": pa.int32()}
PLACE = {"path": pa.string(), "member": pa.string(), "offset": pa.int64(), "size": pa.int64()}
COLUMNS = {
    "images": {**PLACE, "split": pa.string(), "fault": pa.string(), **SOURCE},
    "sentences": {"owner": pa.int32(), "number": pa.int32(), "text": pa.string(), **SOURCE},
    "documents": {"owner": pa.int32(), "title": pa.string(), "tags": pa.string(), "description": pa.string(), **SOURCE},
    "boxes": {
        "owner": pa.int32(),
        **dict.fromkeys(("x1", "y1", "x2", "y2", "score"), pa.float64()),
        "label": pa.string(),
        **SOURCE,
    },
}
"""`owner` is the row of the image among all given images, `file` a number in `Intake.files`, `fault` the reason why an
image need not be read."""


def parse_takedown(text: str) -> frozenset[str]:
    """The names in a takedown list, one a line, without empty lines and comments (#)."""
    lines = (line.strip() for line in text.splitlines())
    return frozenset(line for line in lines if line and not line.startswith("#"))


def leave_out(records: Iterable[Record], names: frozenset[str]) -> Iterator[Record]:
    """`records` without the images of these `names` and everything that belongs to them, as if they had never been
    there: they do not become rejects.

    A name is an image's key in the collection, its path relative to the data root, or its name in a tar shard.
    """
    gone = set(names)
    for record in records:
        if isinstance(record, Reject):
            yield record
            continue
        if isinstance(record, ImageRecord) and gone & {record.path, record.member, record.key}:
            gone.add(record.key)
        if record.key not in gone:
            yield record


class Intake:
    """A table for each of COLUMNS, the user's `own` columns of the images (those `chosen`; None: all), the rejects so
    far, and how many of each kind were given."""

    def __init__(self, max_chars: int, chosen: Collection[str] | None = None) -> None:
        self.max_chars = max_chars
        self.own = OwnColumns(max_chars, chosen)
        self.given: Counter[str] = Counter()
        self.rejects: list[Reject] = []
        self.files: dict[str, int] = {}
        self._owners: dict[str, int] = {}
        self._columns = {what: _Columns(fields) for what, fields in COLUMNS.items()}

    def add(self, records: Iterable[Record]) -> "Intake":
        """Add all records of a reader; an image must come before what belongs to it."""
        for record in records:
            match record:
                case ImageRecord():
                    self._add_image(record)
                case SentenceRecord():
                    self._add_owned("sentences", record, self._sentence_fault(record))
                case DocumentRecord():
                    self._add_owned("documents", record, self._document_fault(record))
                case BoxRecord():
                    self._add_owned("boxes", record, _text_fault(record.label))
                case ColumnsRecord():
                    self.own.add(self._owners.get(record.key), record.values)
                case Reject():
                    self.given[record.what] += 1
                    self.rejects.append(record)
        return self

    def tables(self) -> dict[str, pa.Table]:
        return {what: columns.table() for what, columns in self._columns.items()}

    def _add_image(self, image: ImageRecord) -> None:
        self.given["images"] += 1
        if image.key in self._owners:
            self.rejects.append(Reject(image.file, image.row, "images", f"duplicate: {image.key!r} was named before"))
            return
        self._owners[image.key] = len(self._owners)
        fault = _name_fault(image.path) or (image.member is not None and _name_fault(image.member)) or None
        place = (None,) * len(PLACE) if fault else (image.path, image.member, image.offset, image.size)
        split = image.split if image.split in SPLITS or image.split == DIVIDED else None
        if split is None:
            fault = fault or f"unknown split {image.split!r}; there are {', '.join(SPLITS)}"
        self._columns["images"].append((*place, split, fault, self._file(image.file), image.row))

    def _add_owned(self, what: str, record: Any, fault: str | None) -> None:
        self.given[what] += 1
        owner = self._owners.get(record.key)
        if fault is None and owner is None:
            fault = f"unknown image: {record.key!r}"
        if fault:
            self.rejects.append(Reject(record.file, record.row, what, fault))
        else:
            self._columns[what].append((owner, *record[1:-2], self._file(record.file), record.row))

    def _file(self, name: str) -> int:
        return self.files.setdefault(name, len(self.files))

    def _sentence_fault(self, sentence: SentenceRecord) -> str | None:
        if not isinstance(sentence.text, str):
            return f"not a text but {type(sentence.text).__name__}"
        if not sentence.text or sentence.text.isspace():
            return "empty"
        if sentence.number > LARGEST_NUMBER:
            return f"the number of a sentence is at most {LARGEST_NUMBER}"
        return _text_fault(sentence.text, self.max_chars)

    def _document_fault(self, document: DocumentRecord) -> str | None:
        fields = (document.title, document.tags, document.description)
        if all(not field or field.isspace() for field in fields):
            return "empty"
        return next(filter(None, (_text_fault(field, self.max_chars) for field in fields)), None)


class _Columns:
    """A table that is filled row by row, and packed every BATCH rows."""

    def __init__(self, fields: dict[str, pa.DataType]) -> None:
        self._schema = pa.schema(list(fields.items()))
        self._rows: list[tuple[Any, ...]] = []
        self._batches: list[pa.RecordBatch] = []

    def append(self, row: tuple[Any, ...]) -> None:
        self._rows.append(row)
        if len(self._rows) == BATCH:
            self._pack()

    def table(self) -> pa.Table:
        if self._rows:
            self._pack()
        return pa.Table.from_batches(self._batches, self._schema)

    def _pack(self) -> None:
        columns = zip(zip(*self._rows, strict=True), self._schema, strict=True)
        arrays = [pa.array(values, field.type) for values, field in columns]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._rows = []


def _text_fault(text: str, max_chars: int | None = None) -> str | None:
    if max_chars is not None and len(text) > max_chars:
        return f"too long: {len(text)} characters, more than {max_chars}"
    if "\0" in text:
        return "NUL character"
    return None if text.isascii() or _is_unicode(text) else f"{NOT_UTF8}: lone surrogate"


def _name_fault(name: str) -> str | None:
    """Why `name`, relative to the root or inside a shard, must not be opened; None if it may."""
    if not name or "\0" in name:
        return f"no file name: {name!r}"
    if not _is_unicode(name):
        return f"{NOT_UTF8}: {name!r}"
    if name.startswith("/") or ".." in name.split("/"):
        return f"outside: {name!r} leads out of the collection; use names relative to it"
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

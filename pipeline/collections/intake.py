"""The first half of ingest: a collection's records in tables, with faults that need no look at the images.

Whose a text is is decided once all records are there (`ownership`).
"""

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from uuid import uuid4

import pyarrow as pa

from pipeline.collections.files import CollectionFolder
from pipeline.collections.own_columns import OwnColumns
from pipeline.collections.ownership import Ownership
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
    is_unicode,
)
from pipeline.collections.tables import REJECTS, Rejects, Tables, to_bytes
from pipeline.config.section import SPLITS
from pipeline.image_names import Readings, Takedown

LARGEST_NUMBER = (1 << 31) - 1
GIVEN = {"seq": pa.int64(), "key": pa.binary()}
SOURCE = {"file": pa.binary(), "row": pa.int64()}
LOCATION = {"path": pa.string(), "member": pa.string(), "offset": pa.int64(), "size": pa.int64()}
OWN_FIELDS = {
    "images": {"implied": pa.bool_(), "there": pa.bool_(), **LOCATION, "split": pa.string(), "fault": pa.string()},
    "sentences": {"fault": pa.string(), "number": pa.int64(), "text": pa.string()},
    "documents": {
        **{"implied": pa.bool_(), "fault": pa.string()},
        **dict.fromkeys(("title", "tags", "description"), pa.string()),
    },
    "boxes": {
        "fault": pa.string(),
        **dict.fromkeys(("x1", "y1", "x2", "y2", "score"), pa.float64()),
        "label": pa.string(),
    },
    "own_columns": {"packed": pa.string()},
}
SCHEMAS = {what: pa.schema([*(GIVEN | fields | SOURCE).items()]) for what, fields in OWN_FIELDS.items()} | REJECTS
"""`seq` numbers all records of a collection, `file` and `row` say where one stands, `fault` why it cannot be used;
`there` is false of an image whose file is not there under its name. An `implied` image, and the document that comes
next, count only where the image was not named before."""


class Intake:
    """What a collection gives: `tables` of its images and of what they own, its `rejects` so far, how many of each kind
    were `given`, and `notes` on how names were read; the user's `own` columns of the images (those `chosen`; None:
    all). What exceeds `gigabytes` of memory lies in the folder `scratch`. To be closed.

    Names are those of photographs in `folder` in whatever spelling; without it, as they are given. The images that the
    lines `takedown` name are left out with all that belongs to them, as if they had never been there: a line is an
    image's key in the collection, its path relative to the data root, or its name in a tar shard.
    """

    def __init__(
        self, max_chars: int, chosen: Collection[str] | None = None, scratch: Path | None = None,
        folder: CollectionFolder | None = None, takedown: Iterable[str] = (), gigabytes: float = 1.0,
    ) -> None:  # fmt: skip
        self.max_chars = max_chars
        self.own = OwnColumns(max_chars, chosen)
        self.given: Counter[str] = Counter()
        self.notes: list[str] = []
        self.tables = Tables(scratch or Path(gettempdir()) / f"jointspace-{uuid4().hex}", SCHEMAS, gigabytes)
        self.rejects = Rejects(self.tables)
        self.folder = folder
        self.takedown = Takedown(takedown, folder.readings if folder else Readings())
        self._seq = 0

    def add(self, records: Iterable[Record]) -> "Intake":
        """Add all records of a reader, once; an image must come before what belongs to it."""
        for self._seq, record in enumerate(records):
            match record:
                case ImageRecord():
                    self._add_image(record)
                case SentenceRecord():
                    number = self._seq if record.number is None else record.number
                    self._add_owned("sentences", record, (number, record.text), self._sentence_fault(record))
                case DocumentRecord():
                    self._add_document(record)
                case BoxRecord():
                    self._add_owned("boxes", record, record[1:-2], _text_fault(record.label))
                case ColumnsRecord():
                    self._append("own_columns", record, (self.own.pack(record.values),))
                case Reject():
                    self.given[record.what] += 1
                    self.rejects.add(self._seq, record)
        ownership = Ownership(self.tables, self.given, self.folder, self.takedown)
        ownership.assign()
        self.notes += ownership.notes
        if ownership.strangers:
            self.own.leave_out("of an unknown image", ownership.strangers)
        self.own.see(packed for _, packed in self.tables.rows("SELECT seq, packed FROM own_columns ORDER BY seq"))
        return self

    def close(self) -> None:
        self.tables.close()

    def _append(self, what: str, record: Any, fields: tuple[Any, ...]) -> None:
        self.tables.append(what, (self._seq, to_bytes(record.key), *fields, to_bytes(record.file), record.row))

    def _add_image(self, image: ImageRecord) -> None:
        self.given["images"] += 1
        fault = self._path_fault(image.path) or (image.member is not None and _name_fault(image.member)) or None
        looked_at = not (self.folder is None or image.row is None or image.member is not None or fault)
        there = not looked_at or self.folder.has(image.path)
        location = (None,) * len(LOCATION) if fault else (image.path, image.member, image.offset, image.size)
        split = image.split if image.split in SPLITS or image.split == DIVIDED else None
        if split is None:
            fault = fault or f"unknown split {image.split!r}; there are {', '.join(SPLITS)}"
        self._append("images", image, (image.implied, there, *location, split, fault))

    def _path_fault(self, path: str) -> str | None:
        """An absolute path may lie inside of the collection."""
        return _name_fault(path.lstrip("/") if self.folder and path.startswith("/") else path)

    def _add_document(self, document: DocumentRecord) -> None:
        """Its fault counts only with it."""
        self.given["documents"] += 1
        fault = self._document_fault(document)
        texts = (None,) * 3 if fault else (document.title, document.tags, document.description)
        self._append("documents", document, (document.implied, fault, *texts))

    def _add_owned(self, what: str, record: Any, fields: tuple[Any, ...], fault: str | None) -> None:
        """Its fault counts only with its image: a name that is taken down leaves no trace."""
        self.given[what] += 1
        self._append(what, record, (fault, *((None,) * len(fields) if fault else fields)))

    def _sentence_fault(self, sentence: SentenceRecord) -> str | None:
        if not isinstance(sentence.text, str):
            return f"not a text but {type(sentence.text).__name__}"
        if not sentence.text or sentence.text.isspace():
            return "empty"
        if sentence.number is not None and sentence.number > LARGEST_NUMBER:
            return f"the number of a sentence is at most {LARGEST_NUMBER}"
        return _text_fault(sentence.text, self.max_chars)

    def _document_fault(self, document: DocumentRecord) -> str | None:
        fields = (document.title, document.tags, document.description)
        if all(not field or field.isspace() for field in fields):
            return "empty"
        return next(filter(None, (_text_fault(field, self.max_chars) for field in fields)), None)


def _text_fault(text: str, max_chars: int | None = None) -> str | None:
    if max_chars is not None and len(text) > max_chars:
        return f"too long: {len(text)} characters, more than {max_chars}"
    if "\0" in text:
        return "NUL character"
    return None if text.isascii() or is_unicode(text) else f"{NOT_UTF8}: lone surrogate"


def _name_fault(name: str) -> str | None:
    """Why `name`, relative to the root or inside a shard, must not be opened; None if it may."""
    if not name or "\0" in name:
        return f"no file name: {name!r}"
    if not is_unicode(name):
        return f"{NOT_UTF8}: {name!r}"
    if name.startswith("/") or ".." in name.split("/"):
        return f"outside: {name!r} leads out of the collection; use names relative to it"
    return None

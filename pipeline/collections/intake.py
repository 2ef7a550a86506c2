"""The first half of ingest: it reads the records of a collection into tables, and finds faults without opening images.

After all records were read, sentences, weak texts, boxes and rows of own columns are assigned to images by their keys.
Names that are not exactly the name of a photo are matched to all photos by the rules of `image_names`. The SQL of each
step is in `ingest_sql`.
"""

import html
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from tempfile import gettempdir
from typing import TypeVar
from uuid import uuid4

from pipeline.collections import ingest_sql
from pipeline.collections.files import CollectionFolder
from pipeline.collections.ingest_sql import MAX_SENTENCE_NUMBER
from pipeline.collections.own_columns import OwnColumns
from pipeline.collections.records import (
    DIVIDED,
    NOT_UTF8,
    BoxRecord,
    ColumnsRecord,
    DocumentRecord,
    ImageRecord,
    KeyedRecord,
    Record,
    Reject,
    SentenceRecord,
)
from pipeline.collections.tables import INTAKE_TABLES, OWNED_KINDS, Cell, Rejects, Tables, to_bytes, to_text
from pipeline.config.section import SPLITS
from pipeline.foreign.image_names import NameMatcher, Reading, Spelling, StoredPhoto, Takedown, describe_reading
from pipeline.printable import is_unicode
from pipeline.storage.files import name_fault

ENTITY = re.compile(r"&(?:amp|quot|apos|lt|gt|nbsp|#\d{1,7}|#[xX][\da-fA-F]{1,6});")
"""A pattern for a character that is written as in HTML, such as &amp;."""

Described = TypeVar("Described", SentenceRecord, DocumentRecord)


class Intake:
    """The records of a collection, in `tables` of images and of the records that belong to images.

    `rejects` has the records that were rejected so far, `given` the number of records of each kind, and `notes` lines
    for the user about unusual names and texts. `own` has the user's own columns of images: the columns in `chosen`, or
    all columns if `chosen` is None. Texts of more than `max_chars` characters are rejected. Data beyond `gigabytes` of
    memory are kept in the folder `scratch`, by default a new temporary folder. The caller must close the intake.

    Names of images are matched to the photos in `folder` in any spelling. Without `folder` they are not checked. Images
    that the lines in `takedown` name are removed with all of their records, as if they had never been there. A line is
    the key of an image in the collection, or a name as Takedown describes. Lines in `removed` have the same effect, but
    must be exact names.
    """

    def __init__(
        self, max_chars: int, chosen: Collection[str] | None = None, scratch: Path | None = None,
        folder: CollectionFolder | None = None, takedown: Collection[str] = (), gigabytes: float = 1.0,
        removed: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.max_chars = max_chars
        self.own = OwnColumns(max_chars, chosen)
        self.given: Counter[str] = Counter()
        self.notes: list[str] = []
        scratch = scratch or Path(gettempdir()) / f"jointspace-{uuid4().hex}"
        self.tables = Tables(scratch, INTAKE_TABLES, gigabytes)
        self.rejects = Rejects(self.tables)
        self.folder = folder
        self.takedown = Takedown(takedown, folder.matcher if folder else NameMatcher(), removed)
        self._seq = 0
        self._escaped = 0

    def add(self, records: Iterable[Record]) -> "Intake":
        """Add all records of a reader, and assign them to images. Return the intake itself.

        The method must be called only once. The record of an image must precede the records that belong to the image.
        """
        for self._seq, record in enumerate(records):
            match record:
                case ImageRecord():
                    self._add_image(record)
                case SentenceRecord():
                    record = self._unescape(record, "text")
                    number = self._seq if record.number is None else record.number
                    self._add_owned("sentences", record, (number, record.text), self._sentence_fault(record))
                case DocumentRecord():
                    record = self._unescape(record, "title", "tags", "description")
                    texts = (record.title, record.tags, record.description)
                    self._add_owned("documents", record, texts, self._document_fault(texts), record.implied)
                case BoxRecord():
                    self._add_owned("boxes", record, record[1:-2], _text_fault(record.label))
                case ColumnsRecord():
                    self._append("own_columns", record, (self.own.pack(record.values),))
                case Reject():
                    self.given[record.what] += 1
                    self.rejects.add(self._seq, record)
        if self._escaped:
            self.notes.append(f"{self._escaped:,} texts had characters as HTML writes them, such as &amp; for &")
        self._assign_owners()
        self.own.see(packed for _, packed in self.tables.rows("SELECT seq, packed FROM own_columns ORDER BY seq"))
        return self

    def close(self) -> None:
        self.tables.close()

    def _append(self, kind: str, record: KeyedRecord, fields: tuple[Cell, ...]) -> None:
        self.tables.append(kind, (self._seq, to_bytes(record.key), *fields, to_bytes(record.file), record.row))

    def _add_image(self, image: ImageRecord) -> None:
        self.given["images"] += 1
        # An absolute path is checked without its first slash, since it may be the path of a photo of the collection.
        fault = _name_fault(image.path.lstrip("/") if self.folder else image.path)
        if fault is None and image.member is not None:
            fault = _name_fault(image.member, False)
        location = (None,) * 4 if fault else (image.path, image.member, image.offset, image.size)
        there = True
        if self.folder is not None and image.row is not None and image.member is None and not fault:
            there = self.folder.has(image.path)
        fault = fault or (name_fault(image.path) if there else None)
        split = image.split if image.split in SPLITS or image.split == DIVIDED else None
        if split is None:
            fault = fault or f"unknown split {image.split!r}: use one of {', '.join(SPLITS)}"
        self._append("images", image, (image.implied, there, *location, split, fault))

    def _unescape(self, record: Described, *fields: str) -> Described:
        """Replace HTML's escapes in the `fields` of a record by the characters, and return the new record. The record
        is counted if one of the fields changes."""
        texts = {field: text for field in fields if isinstance(text := getattr(record, field), str) and "&" in text}
        plain = record._replace(**{field: unescape(text) for field, text in texts.items()}) if texts else record
        self._escaped += plain != record
        return plain

    def _add_owned(
        self, kind: str, record: KeyedRecord, fields: tuple[Cell, ...], fault: str | None, *flags: bool
    ) -> None:
        """Add a sentence, weak text or box to the table `kind`, and count it in `given`.

        `flags` and `fields` are the values of the columns of this kind. If the record has a `fault`, which is the
        reason for rejecting it, its `fields` are stored as null. The fault is only reported if the image is not removed
        by the takedown list, so that removed photos leave no trace.
        """
        self.given[kind] += 1
        self._append(kind, record, (*flags, fault, *((None,) * len(fields) if fault else fields)))

    def _sentence_fault(self, sentence: SentenceRecord) -> str | None:
        if not isinstance(sentence.text, str):
            return f"not a text: the caption is a value of the type {type(sentence.text).__name__}. Write it as text"
        if not sentence.text or sentence.text.isspace():
            return "empty: the caption has no words. Its photo is used without it"
        if sentence.number is not None and sentence.number > MAX_SENTENCE_NUMBER:
            return f"wrong number of the caption: {sentence.number} is larger than {MAX_SENTENCE_NUMBER}"
        return _text_fault(sentence.text, self.max_chars)

    def _document_fault(self, fields: tuple[str, ...]) -> str | None:
        if all(not field or field.isspace() for field in fields):
            return "empty: the title, the tags and the description have no words"
        return next(filter(None, (_text_fault(field, self.max_chars) for field in fields)), None)

    def _assign_owners(self) -> None:
        """Assign each record to its image (`owner`), and remove or reject unusable records.

        Records of implied images are removed without a message if the image was named before, together with the weak
        texts that came with them. Such records do not count in `given`. Images of the takedown list, and the records of
        these images, do not count either.
        """
        if self.folder is not None:
            self._find_files(self.folder)
        ingest_sql.assign_owners(self.tables)
        self._find_images()
        # An implied document counts only if the record before it has named the image first.
        self.given["documents"] -= self.tables.run(
            """DELETE FROM documents WHERE implied
            AND NOT EXISTS (FROM images WHERE images.seq = documents.seq - 1 AND images.owner = images.seq)"""
        )
        self._take_down()
        if unknown := self.tables.run("DELETE FROM own_columns WHERE owner IS NULL"):
            self.own.left_out["of an unknown image"] += unknown
        ingest_sql.reject_unusable_records(self.tables)
        self.given["images"] -= ingest_sql.drop_repeated_images(self.tables)

    def _find_files(self, folder: CollectionFolder) -> None:
        """Replace paths of images that do not exist exactly by the paths of the files that match them.

        A path that matches several files, or that matches none and leads out of the collection, is a fault of the
        image.
        """
        named = self.tables.rows("SELECT DISTINCT path FROM images WHERE NOT there AND path IS NOT NULL")
        missing = [path for (path,) in named]
        matches = dict(folder.matcher.match(missing, folder.spellings, Reading.OTHER_FOLDER))
        for path in missing:
            match = matches.get(path)
            if match is None and (path.startswith("/") or "://" in path):
                fault = f"outside: {path!r} leads out of the collection. Use names that are relative to it"
                self.tables.append("respelt", (path, None, fault, None))
            elif match and match.ambiguous:
                self.tables.append("respelt", (path, None, f"ambiguous: {path!r} {match.choice}", None))
            elif match:
                file = next(iter(match.targets))
                self.tables.append("respelt", (path, file, name_fault(file), match.reading))
        readings, total = ingest_sql.respell_files(self.tables)
        self._note(readings, total, "files")

    def _find_images(self) -> None:
        """Assign records whose key is not exactly the key of an image to the only image that the key matches.

        Records whose key matches several images are noted as ambiguous, and are rejected later.
        """
        unknown = list(map(to_text, ingest_sql.unknown_keys(self.tables)))
        for name, match in self.takedown.matcher.match(unknown, self._image_spellings):
            if len(match.targets) > 1:
                self.tables.append("ambiguous", (to_bytes(name), f"ambiguous image: {name!r} {match.choice}"))
            else:
                self.tables.append("renamed", (to_bytes(name), next(iter(match.targets)), match.reading))
        for kind, name_in_notes in OWNED_KINDS.items() if unknown else ():
            self._note(ingest_sql.apply_renamed(self.tables, kind), self.given[kind], name_in_notes)

    def _take_down(self) -> None:
        """Remove the images in the takedown list with all of their records, and the records of images that are in the
        list, but not in the collection.

        Captions in the takedown list are removed later, when copies of images are known.
        """
        if not self.takedown.lines:
            return
        taken: set[int] = set()
        for line, match in self.takedown.match(self._photo_spellings):
            if self.takedown.meets(line, match):
                taken.update(match.targets)
        for image in taken:
            self.tables.append("taken", (image,))
        lines = self.takedown.captions()
        for name, match in self.takedown.match(self._photo_spellings, names=lines):
            for line in lines[name]:
                if match.ambiguous:
                    self.takedown.meets(line, match)
                elif taken.issuperset(match.targets):
                    self.takedown.meets_caption(line, None)
                else:
                    for image in match.targets:
                        self.tables.append("captions_taken", (image, line))
        for key in ingest_sql.unknown_keys(self.tables):
            if self.takedown.names(to_text(key)):
                self.tables.append("taken_names", (key,))
        for kind in ("images", *OWNED_KINDS):
            self.given[kind] -= self.tables.run(
                f"DELETE FROM {kind} WHERE owner IN (FROM taken) OR (owner IS NULL AND key IN (FROM taken_names))"
            )

    def _image_spellings(self) -> Iterator[Spelling[int]]:
        """Yield the key of each image, and its path if the path differs from the key, as spellings of the `seq` of the
        image."""
        for key, path, _, owner in ingest_sql.image_names(self.tables):
            yield Spelling(to_text(key), owner)
            if path is not None and path != to_text(key):
                yield Spelling(path, owner, from_root=True)

    def _photo_spellings(self) -> Iterator[Spelling[int]]:
        """Yield the names by which the takedown list may mean an image: the names that an index has for the image, and
        the key of the image.

        The key of an image in a shard only matches in Reading.INSIDE_ROOT and in looser readings.
        """
        root = self.folder.root if self.folder else ""
        for key, path, member, owner in ingest_sql.image_names(self.tables):
            photo = StoredPhoto(owner, path or to_text(key), member, "", f"{root}")
            shown = repr(photo.whole if root else photo.name)
            for name in photo.spellings():
                yield Spelling(name.name, owner, name.from_root, shown, name.shard)
            yield Spelling(to_text(key), owner, member is not None, shown)

    def _note(self, readings: ingest_sql.ReadingCounts, total: int, what: str) -> None:
        self.notes += [describe_reading(reading, count, total, f"names of {what}") for reading, count in readings]


def unescape(text: str) -> str:
    """Replace HTML's numeric escapes, such as `&#39;`, and the named ones in ENTITY, such as `&amp;`, by the
    characters. Other named escapes are not changed."""
    return ENTITY.sub(lambda entity: html.unescape(entity[0]), text)


def _text_fault(text: str, max_chars: int | None = None) -> str | None:
    """Return the reason for rejecting the record with this text, or None if the text can be used.

    A text is rejected if it has more than `max_chars` characters, a NUL character, or a lone surrogate, which stands
    for a byte that is not UTF-8. If `max_chars` is None, the length is not limited. An empty text has no fault here.
    """
    if max_chars is not None and len(text) > max_chars:
        return f"too long: the text has {len(text)} characters, but only {max_chars} are allowed. Shorten it"
    if "\0" in text:
        return "NUL character: the text contains a character of value 0. Remove it"
    if text.isascii() or is_unicode(text):
        return None
    return f"{NOT_UTF8}: the text has bytes of another encoding, or a lone surrogate. Save the file as UTF-8"


def _name_fault(name: str, listed: bool = True) -> str | None:
    """Return the reason why a file of this name must not be opened, or None if it may be opened. `listed` is passed to
    `name_fault`."""
    return name_fault(name, listed) if is_unicode(name) else f"{NOT_UTF8}: {name!r}"

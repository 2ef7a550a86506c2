"""The first half of ingest: a collection's records in tables, with faults that need no look at the images.

Which image a sentence, document, box or row of own columns belongs to is decided once all records are there, by their
keys. An image is known by the `seq` of the record that named it first: its `owner` number, from then on. A name that is
no photograph's exactly is looked for among all photographs by the rules of `image_names`.
"""

import html
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from uuid import uuid4

import pyarrow as pa

from pipeline.collections.files import CollectionFolder
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
from pipeline.collections.tables import REJECTS, Rejects, Tables, to_bytes, to_text
from pipeline.config.section import SPLITS
from pipeline.foreign.image_names import (
    WHOLE_PATH,
    NameMatcher,
    Reading,
    Spelling,
    StoredPhoto,
    Takedown,
    describe_reading,
)
from pipeline.printable import is_unicode
from pipeline.storage.files import name_fault

ENTITY = re.compile(r"&(?:amp|quot|apos|lt|gt|nbsp|#\d{1,7}|#[xX][\da-fA-F]{1,6});")
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
OWNED = {
    "sentences": "sentences",
    "documents": "documents",
    "boxes": "boxes",
    "own_columns": "rows of own columns",
}
"""What images own, and what it is called in notes."""
MATCHES = {
    "respelt": pa.schema(
        [("path", pa.string()), ("file", pa.string()), ("fault", pa.string()), ("reading", pa.int64())]
    ),
    "renamed": pa.schema([("key", pa.binary()), ("image", pa.int64()), ("reading", pa.int64())]),
    "ambiguous": pa.schema([("key", pa.binary()), ("reason", pa.string())]),
    "taken": pa.schema([("image", pa.int64())]),
    "taken_names": pa.schema([("key", pa.binary())]),
    "captions_taken": pa.schema([("image", pa.int64()), ("line", pa.string())]),
}
"""What names turn out to mean: names of files, and why they cannot be used; keys of images; keys that may be one image
or another; images that are taken down, and names of none that the takedown list names; and images of which a line of
that list names a caption."""

OWNERS_BY_FILE = """
    UPDATE owners SET image = files.image
    FROM images, (
        SELECT path, min(seq) AS image FROM images WHERE path IN (SELECT file FROM respelt) GROUP BY path
    ) AS files
    WHERE owners.image = images.seq AND images.path = files.path
"""
WITHOUT_IMPLIED = """
    DELETE FROM documents WHERE implied
    AND NOT EXISTS (FROM images WHERE images.seq = documents.seq - 1 AND images.owner = images.seq)
"""
"""An implied document counts with the image that is named in the record before it."""


class Intake:
    """What a collection gives: `tables` of its images and of what they own, its `rejects` so far, how many of each kind
    were `given`, and `notes` on how names were read; the user's `own` columns of the images (those `chosen`; None:
    all). What exceeds `gigabytes` of memory lies in the folder `scratch`. To be closed.

    Names are those of photographs in `folder` in whatever spelling; without it, as they are given. The images that the
    lines `takedown` name are left out with all that belongs to them, as if they had never been there: a line is an
    image's key in the collection, or names it as Takedown says. `removed` are such lines too, but exact ones.
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
        self.tables = Tables(scratch or Path(gettempdir()) / f"jointspace-{uuid4().hex}", SCHEMAS | MATCHES, gigabytes)
        self.rejects = Rejects(self.tables)
        self.folder = folder
        self.takedown = Takedown(takedown, folder.matcher if folder else NameMatcher(), removed)
        self._seq = 0
        self._escaped = 0

    def add(self, records: Iterable[Record]) -> "Intake":
        """Add all records of a reader, once; an image must come before what belongs to it."""
        for self._seq, record in enumerate(records):
            match record:
                case ImageRecord():
                    self._add_image(record)
                case SentenceRecord():
                    record = self._unescape(record, "text")
                    number = self._seq if record.number is None else record.number
                    self._add_owned("sentences", record, (number, record.text), self._sentence_fault(record))
                case DocumentRecord():
                    self._add_document(self._unescape(record, "title", "tags", "description"))
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

    def _append(self, what: str, record: Any, fields: tuple[Any, ...]) -> None:
        self.tables.append(what, (self._seq, to_bytes(record.key), *fields, to_bytes(record.file), record.row))

    def _add_image(self, image: ImageRecord) -> None:
        self.given["images"] += 1
        fault = self._path_fault(image.path) or (image.member is not None and _name_fault(image.member, False)) or None
        looked_at = not (self.folder is None or image.row is None or image.member is not None or fault)
        there = not looked_at or self.folder.has(image.path)
        location = (None,) * len(LOCATION) if fault else (image.path, image.member, image.offset, image.size)
        fault = fault or (name_fault(image.path) if there else None)
        split = image.split if image.split in SPLITS or image.split == DIVIDED else None
        if split is None:
            fault = fault or f"unknown split {image.split!r}; there are {', '.join(SPLITS)}"
        self._append("images", image, (image.implied, there, *location, split, fault))

    def _unescape(self, record: Any, *fields: str) -> Any:
        texts = {field: text for field in fields if isinstance(text := getattr(record, field), str) and "&" in text}
        plain = record._replace(**{field: unescape(text) for field, text in texts.items()}) if texts else record
        self._escaped += plain != record
        return plain

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
            return "empty: it has no words, and its photo is read without it"
        if sentence.number is not None and sentence.number > LARGEST_NUMBER:
            return f"the number of a sentence is at most {LARGEST_NUMBER}"
        return _text_fault(sentence.text, self.max_chars)

    def _document_fault(self, document: DocumentRecord) -> str | None:
        fields = (document.title, document.tags, document.description)
        if all(not field or field.isspace() for field in fields):
            return "empty"
        return next(filter(None, (_text_fault(field, self.max_chars) for field in fields)), None)

    def _assign_owners(self) -> None:
        """Leave out images that were named before and what belongs to no image; give the rest its `owner`.

        Images that are only implied are left out without a word, and with them their documents; they are not `given`.
        Nor are images that are taken down and what belongs to them.
        """
        if self.folder is not None:
            self._find_files()
        self.tables.run("CREATE TABLE owners AS SELECT key, min(seq) AS image FROM images GROUP BY key")
        self.tables.run(OWNERS_BY_FILE)
        for what in ("images", *OWNED):
            self.tables.run(
                f"CREATE OR REPLACE TABLE {what} AS SELECT {what}.*, owners.image AS owner FROM {what}"
                f" LEFT JOIN owners ON {what}.key = owners.key AND owners.image <= {what}.seq"
            )
        self._find_images()
        self.given["documents"] -= self.tables.run(WITHOUT_IMPLIED)
        self._take_down()
        if strangers := self.tables.run("DELETE FROM own_columns WHERE owner IS NULL"):
            self.own.leave_out("of an unknown image", strangers)
        for what in ("sentences", "documents", "boxes"):
            self.tables.run(
                f"""INSERT INTO rejects
                SELECT seq, '{what}', coalesce(ambiguous.reason, fault, 'unknown image: {{!r}}'),
                CASE WHEN ambiguous.reason IS NULL AND fault IS NULL THEN key END, file, "row"
                FROM {what} LEFT JOIN ambiguous USING (key) WHERE fault IS NOT NULL OR owner IS NULL"""
            )
            self.tables.run(f"DELETE FROM {what} WHERE fault IS NOT NULL OR owner IS NULL")
        self.given["images"] -= self.tables.run("DELETE FROM images WHERE owner < seq AND implied")
        self.tables.run(
            """INSERT INTO rejects
            SELECT seq, 'images', 'duplicate: {!r} was named before', key, file, "row"
            FROM images WHERE owner < seq"""
        )
        self.tables.run("DELETE FROM images WHERE owner < seq")
        self.tables.run("DELETE FROM own_columns WHERE seq NOT IN (SELECT min(seq) FROM own_columns GROUP BY owner)")
        self.tables.run("DROP TABLE owners")

    def _find_files(self) -> None:
        """Give images the file that is there, in place of one that differs from it in its spelling; a name that may be
        several files, or lies outside, is a fault of the image."""
        lost = self._values("SELECT DISTINCT path FROM images WHERE NOT there AND path IS NOT NULL")
        matches = dict(self.folder.matcher.match(lost, self.folder.spellings, Reading.OTHER_FOLDER))
        for path in lost:
            match = matches.get(path)
            if match is None and (path.startswith("/") or "://" in path):
                fault = f"outside: {path!r} leads out of the collection; use names relative to it"
                self.tables.append("respelt", (path, None, fault, None))
            elif match and match.ambiguous:
                self.tables.append("respelt", (path, None, f"ambiguous: {path!r} {match.choice}", None))
            elif match:
                spelling = next(iter(match.targets))
                self.tables.append("respelt", (path, spelling, name_fault(spelling), match.reading))
        # Lists that name a photograph exactly mean another one by the same name in another case or without its ending.
        exact = 'SELECT path FROM images WHERE there AND "row" IS NOT NULL AND path IS NOT NULL'
        self.tables.run(f"DELETE FROM respelt WHERE reading >= {Reading.CASE:d} AND file IN ({exact})")
        slashed = r"replace(path, '\', '/')"
        pattern = f"'^({WHOLE_PATH.pattern})', 'is'"
        whole = f"reading = {Reading.OTHER_FOLDER:d} AND regexp_matches({slashed}, {pattern})"
        spelt = f"lower({slashed})"
        several = f"SELECT file FROM respelt WHERE {whole} GROUP BY file HAVING count(DISTINCT {spelt}) > 1"
        ambiguous = "file = NULL, fault = 'ambiguous: several names may be ' || file"
        self.tables.run(f"UPDATE respelt SET {ambiguous} WHERE {whole} AND file IN ({several})")
        total = self.tables.value('SELECT count(DISTINCT path) FROM images WHERE "row" IS NOT NULL')
        self._note("FROM respelt WHERE file IS NOT NULL", total, "files")
        self.tables.run(
            "UPDATE images SET path = coalesce(respelt.file, images.path), there = respelt.file IS NOT NULL,"
            " fault = coalesce(images.fault, respelt.fault) FROM respelt WHERE images.path = respelt.path"
        )

    def _find_images(self) -> None:
        """What belongs to no image by its key gets the one that the key means."""
        unknown = self._unknown_keys()
        for name, match in self.takedown.matcher.match(map(to_text, unknown), self._images):
            if len(match.targets) > 1:
                self.tables.append("ambiguous", (to_bytes(name), f"ambiguous image: {name!r} {match.choice}"))
            else:
                self.tables.append("renamed", (to_bytes(name), next(iter(match.targets)), match.reading))
        for what, called in OWNED.items() if unknown else ():
            means = f"{what}.key = renamed.key AND owner IS NULL AND image < seq"
            self._note(f"FROM {what} JOIN renamed ON {means}", self.given[what], called)
            self.tables.run(f"UPDATE {what} SET owner = image FROM renamed WHERE {means}")

    def _take_down(self) -> None:
        """Remove images that are taken down and what belongs to them, also under names of no image. Captions that are
        taken down are removed later, when copies of images are known."""
        if not self.takedown.lines:
            return
        taken: set[int] = set()
        for line, match in self.takedown.match(self._every_name):
            if self.takedown.meets(line, match):
                taken.update(match.targets)
        for image in taken:
            self.tables.append("taken", (image,))
        lines = self.takedown.captions()
        for name, match in self.takedown.match(self._every_name, names=lines):
            for line in lines[name]:
                if match.ambiguous:
                    self.takedown.meets(line, match)
                elif taken.issuperset(match.targets):
                    self.takedown.meets_caption(line, None)
                else:
                    for image in match.targets:
                        self.tables.append("captions_taken", (image, line))
        for key in self._unknown_keys():
            if self.takedown.names(to_text(key)):
                self.tables.append("taken_names", (key,))
        for what in ("images", *OWNED):
            self.given[what] -= self.tables.run(
                f"DELETE FROM {what} WHERE owner IN (FROM taken) OR (owner IS NULL AND key IN (FROM taken_names))"
            )

    def _unknown_keys(self) -> list[bytes]:
        return self._values(" UNION ".join(f"SELECT key FROM {what} WHERE owner IS NULL" for what in OWNED))

    def _images(self) -> Iterator[Spelling]:
        """The images' keys, and their paths."""
        for key, path, owner in self.tables.rows("SELECT key, path, owner FROM images ORDER BY seq"):
            yield Spelling(to_text(key), owner)
            if path is not None and path != to_text(key):
                yield Spelling(path, owner, from_root=True)

    def _every_name(self) -> Iterator[Spelling]:
        """Spell the images as the photos of an index, and by their keys. Names in a shard count before keys."""
        root = self.folder.root if self.folder else ""
        for key, path, member, owner in self.tables.rows("SELECT key, path, member, owner FROM images ORDER BY seq"):
            photo = StoredPhoto(owner, path or to_text(key), member, "", f"{root}")
            shown = repr(photo.whole if root else photo.name)
            names = (*photo.spellings(), Spelling(to_text(key), owner, from_root=member is not None))
            for name in names:
                yield Spelling(name.name, owner, name.from_root, shown, name.shard)

    def _note(self, matches: str, total: int, what: str) -> None:
        counts = self.tables.rows(f"SELECT reading, count(*) {matches} GROUP BY reading ORDER BY reading")
        self.notes += [describe_reading(reading, count, total, f"names of {what}") for reading, count in counts]

    def _values(self, sql: str) -> list:
        return [value for (value,) in self.tables.rows(sql)]


def unescape(text: str) -> str:
    """With what HTML writes as `&amp;` or `&#39;` as the characters that are meant."""
    return ENTITY.sub(lambda entity: html.unescape(entity[0]), text)


def _text_fault(text: str, max_chars: int | None = None) -> str | None:
    if max_chars is not None and len(text) > max_chars:
        return f"too long: {len(text)} characters, more than {max_chars}"
    if "\0" in text:
        return "NUL character"
    return None if text.isascii() or is_unicode(text) else f"{NOT_UTF8}: lone surrogate"


def _name_fault(name: str, listed: bool = True) -> str | None:
    """Say why a name must not be opened, as `name_fault` does, or return None if it may be."""
    return name_fault(name, listed) if is_unicode(name) else f"{NOT_UTF8}: {name!r}"

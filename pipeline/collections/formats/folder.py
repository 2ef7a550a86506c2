"""Our own form: `images/` with tables between tabs beside it.

    captions.tsv   file, number, sentence               (no header)
    splits.tsv     file, train | dev | test | weak      (no header)
    weak.tsv       file, title, tags, description       (header)
    boxes.tsv      file, x1, y1, x2, y2, score, label   (header)

Every image that a table or the folder names is one of the collection. What is in no split goes to `weak` where
only weak.tsv knows it, else where collection.default_split says.
"""

import posixpath
from collections.abc import Iterator
from pathlib import Path

from pipeline.collections.formats import files
from pipeline.collections.records import BoxRecord, DocumentRecord, ImageRecord, Options, Record, Reject, SentenceRecord
from pipeline.errors import UsageError

FILES = {
    "images": ("images",),
    "captions": ("captions.tsv",),
    "splits": ("splits.tsv",),
    "weak": ("weak.tsv",),
    "boxes": ("boxes.tsv",),
}


def read(root: Path, options: Options) -> Iterator[Record]:
    """The records of a folder; images in the order of splits.tsv, captions.tsv, weak.tsv, then of their names."""
    where = files.locate(root, options.files, FILES)
    images = files.require(root, "images", where["images"], FILES["images"])
    if not (where["captions"] or where["weak"]):
        raise UsageError(
            f"{root} has no captions.tsv; write one, a row for each sentence: file, number, sentence, between tabs, or"
            " name yours as collection.files.captions"
        )
    prefix = files.image_prefix(root, images)
    seen: set[str] = set()

    def image(name: str, split: str, file: str, row: int | None) -> ImageRecord:
        seen.add(name)
        return ImageRecord(name, posixpath.join(prefix, name), split, file, row)

    if where["splits"]:
        file = files.label(root, where["splits"])
        for item in files.tab_rows(where["splits"], file, "images", 2):
            if isinstance(item, Reject):
                yield item
            else:
                row, (name, split) = item
                yield image(name, files.split_name(split), file, row)
    for path, rows, split in (
        (where["captions"], _sentences, options.default_split),
        (where["weak"], _documents, "weak"),
    ):
        for record in rows(path, files.label(root, path)) if path else ():
            if not isinstance(record, Reject) and record.key not in seen:
                yield image(record.key, split, record.file, record.row)
            yield record
    for below, names in files.walk(images):
        for name in (posixpath.join(below, name) for name in names if files.is_image(name)):
            if name not in seen:
                yield image(name, options.default_split, files.label(root, images), None)
    if where["boxes"]:
        yield from _boxes(where["boxes"], files.label(root, where["boxes"]))


def _sentences(path: Path, file: str) -> Iterator[SentenceRecord | Reject]:
    for item in files.tab_rows(path, file, "sentences", 3):
        if isinstance(item, Reject):
            yield item
            continue
        row, (name, number, text) = item
        if (value := files.sentence_number(number)) is None:
            yield Reject(file, row, "sentences", f"{number[:20]!r} is not the number of a sentence")
        else:
            yield SentenceRecord(name, value, text, file, row)


def _documents(path: Path, file: str) -> Iterator[DocumentRecord | Reject]:
    for item in files.headed_rows(path, file, "documents", ("file", "title", "tags", "description")):
        yield item if isinstance(item, Reject) else DocumentRecord(*item[1], file, item[0])


def _boxes(path: Path, file: str) -> Iterator[BoxRecord | Reject]:
    for item in files.headed_rows(path, file, "boxes", ("file", "x1", "y1", "x2", "y2", "score", "label")):
        if isinstance(item, Reject):
            yield item
            continue
        row, (name, *numbers, text) = item
        try:
            yield BoxRecord(name, *map(float, numbers), text, file, row)
        except ValueError:
            yield Reject(file, row, "boxes", f"not five numbers: {', '.join(numbers)}")

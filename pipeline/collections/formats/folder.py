"""Our own form: photographs in `images/`, or where there is none at any depth, with tables between tabs beside it.

    captions.tsv   file, number, sentence                      (no header)
    splits.tsv     file, train | dev | test | weak | gallery   (no header)
    weak.tsv       file, title, tags, description              (header)
    boxes.tsv      file, x1, y1, x2, y2, score, label          (header)

Every image that a table or the folder names is one of the collection. What is in no split goes to `weak` where
only weak.tsv knows it, else where collection.default_split says.
"""

import posixpath
from collections.abc import Iterator
from pathlib import Path

from pipeline.collections.formats import lists
from pipeline.collections.formats.files import CollectionFolder, is_image
from pipeline.collections.records import BoxRecord, DocumentRecord, ImageRecord, Options, Record, Reject, SentenceRecord

FILES = {
    "images": ("images", "."),
    "captions": ("captions.tsv",),
    "splits": ("splits.tsv",),
    "weak": ("weak.tsv",),
    "boxes": ("boxes.tsv",),
}


def read(root: Path, options: Options) -> Iterator[Record]:
    """The records of a folder; images in the order of splits.tsv, captions.tsv, weak.tsv, then of their names."""
    folder = CollectionFolder(root, options)
    where = folder.locate(FILES)
    if not where["weak"]:
        remedy = "write it, a row for each sentence (file, number, sentence, between tabs), or name yours as"
        folder.require(where["captions"], FILES["captions"], f"{remedy} collection.files.captions")
    images = where["images"]
    prefix = folder.image_prefix(images)
    seen: set[str] = set()

    def image(name: str, split: str, file: str, row: int | None) -> ImageRecord:
        seen.add(name)
        return ImageRecord(name, posixpath.join(prefix, name), split, file, row)

    if where["splits"]:
        file = folder.label(where["splits"])
        for item in lists.tab_rows(folder, where["splits"], "images", 2):
            if isinstance(item, Reject):
                yield item
            else:
                row, (name, split) = item
                yield image(name, lists.split_name(split), file, row)
    for path, rows, split in (
        (where["captions"], _sentences, options.default_split),
        (where["weak"], _documents, "weak"),
    ):
        for record in rows(folder, path) if path else ():
            if not isinstance(record, Reject) and record.key not in seen:
                yield image(record.key, split, record.file, record.row)
            yield record
    for below, names in folder.walk(images):
        for name in (posixpath.join(below, name) for name in names if is_image(name)):
            if name not in seen:
                yield image(name, options.default_split, folder.label(images), None)
    if where["boxes"]:
        yield from _boxes(folder, where["boxes"])


def _sentences(folder: CollectionFolder, path: Path) -> Iterator[SentenceRecord | Reject]:
    file = folder.label(path)
    for item in lists.tab_rows(folder, path, "sentences", 3):
        if isinstance(item, Reject):
            yield item
            continue
        row, (name, number, text) = item
        if (value := lists.sentence_number(number)) is None:
            yield Reject(file, row, "sentences", f"{number[:20]!r} is not the number of a sentence")
        else:
            yield SentenceRecord(name, value, text, file, row)


def _documents(folder: CollectionFolder, path: Path) -> Iterator[DocumentRecord | Reject]:
    file = folder.label(path)
    for item in lists.headed_rows(folder, path, "documents", ("file", "title", "tags", "description")):
        yield item if isinstance(item, Reject) else DocumentRecord(*item[1], file, item[0])


def _boxes(folder: CollectionFolder, path: Path) -> Iterator[BoxRecord | Reject]:
    file = folder.label(path)
    for item in lists.headed_rows(folder, path, "boxes", ("file", "x1", "y1", "x2", "y2", "score", "label")):
        if isinstance(item, Reject):
            yield item
            continue
        row, (name, *numbers, text) = item
        try:
            yield BoxRecord(name, *map(float, numbers), text, file, row)
        except ValueError:
            yield Reject(file, row, "boxes", f"not five numbers: {', '.join(numbers)}")

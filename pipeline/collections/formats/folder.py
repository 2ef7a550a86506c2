"""The formats `folder` and `text-files`.

The format `folder` is jointspace's own format. It has photos in `images/`, or in the folder itself, at any depth, and
tab-separated tables:

    captions.tsv   file, number, sentence (or file, sentence)  (no header)
    splits.tsv     file, train | dev | test | weak | gallery   (no header)
    weak.tsv       file, title, tags, description              (header)
    boxes.tsv      file, x1, y1, x2, y2, score, label          (header)
    metadata.csv   file, and columns of your own               (header, or .tsv, .jsonl, .parquet)

Every image in captions.tsv, splits.tsv, weak.tsv or the folder belongs to the collection. An image that is not in
splits.tsv belongs to `weak` if it is in weak.tsv and not in captions.tsv, and otherwise to collection.default_split.
The tables are optional.

The format `text-files` has photos at any depth. The captions of a photo are in a text file with its stem or its whole
name (a.txt or a.jpg.txt), one sentence per line, or in the `description` of a JSON file with its whole name, as Google
Takeout writes it.
"""

import posixpath
import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from pipeline.collections.files import CollectionFolder, is_image
from pipeline.collections.formats import lists
from pipeline.collections.formats.rows import column_names, other_values, read_rows
from pipeline.collections.records import (
    BoxRecord,
    ColumnsRecord,
    DocumentRecord,
    ImageRecord,
    Options,
    Record,
    Reject,
    SentenceRecord,
)
from pipeline.config.section import SPLITS
from pipeline.errors import InputError

FOLDER = {
    "images": ("images", "."),
    "captions": ("captions.tsv",),
    "splits": ("splits.tsv",),
    "weak": ("weak.tsv",),
    "boxes": ("boxes.tsv",),
    "metadata": ("metadata.csv", "metadata.tsv", "metadata.jsonl", "metadata.parquet"),
}
FILE_COLUMNS = (
    *("file", "file_name", "filename", "filepath", "file_path", "image", "image_path", "path", "photo", "img"),
    *("image_name", "imagename", "img_name", "image_file", "image_filename", "photo_name", "img_path"),
)
"""Usual names of a column of image names, in the spelling of `usual_names`. If a table has several, the first in this
order is used."""
TEXT_FILES: dict[str, tuple[str, ...]] = dict.fromkeys(SPLITS, ())
"""The keys of collection.files that name the folder of a split, in addition to the folders that `lists.split_folders`
finds. Images outside of all these folders belong to the default split."""
TAKEOUT_JSON = re.compile(r"(.+?)(\.\w+)(?:\.s[-a-z]*)?(\(\d+\))?\.json", re.IGNORECASE | re.DOTALL)
"""The name of the JSON file of a photo: a.jpg.json, a.jpg.supplemental-metadata.json (of which Takeout cuts off the end
if the name is too long), or a.jpg(1).json for a(1).jpg."""
DOCUMENT_COLUMNS = ("file", *lists.DOCUMENT)
BOX_COLUMNS = ("file", "x1", "y1", "x2", "y2", "score", "label")
MAX_SHOWN_CHARACTERS = 20
"""Largest number of characters of a field in a message."""


def read_folder(root: Path, options: Options) -> Iterator[Record]:
    """Yield the records of a folder.

    Images are in the order of splits.tsv, then of captions.tsv and weak.tsv, and all other images in the order of their
    names. Raises UsageError if captions are expected but missing: collection.default_split is not gallery, there is no
    captions.tsv, weak.tsv or metadata table, and the folder has other lists or no photos.
    """
    folder = CollectionFolder(root, options)
    where = folder.locate(FOLDER)
    listed = where["captions"] or where["weak"] or where["metadata"]
    if not (listed or options.default_split == "gallery" or folder.only_photographs()):
        remedy = "set collection.default_split to gallery if there are no captions, write this file with lines of a"
        remedy += " file name, a number and a caption between tabs"
        folder.require(None, "captions", FOLDER["captions"], remedy)
    images = where["images"]
    prefix = folder.image_prefix(images)

    def image(name: str, split: str, file: str, row: int | None, implied: bool = False) -> ImageRecord:
        return ImageRecord(name, posixpath.join(prefix, name), lists.split_name(split), file, row, implied=implied)

    if where["splits"]:
        yield from lists.tab_records(
            folder, where["splits"], "images", (2,), lambda fields, file, row: image(fields[0], fields[1], file, row)
        )
    texts: list[tuple[Iterator[Record], str]] = []
    if where["captions"]:
        captions = lists.tab_records(folder, where["captions"], "sentences", (3, 2), _sentence)
        texts.append((captions, options.default_split))
    if where["weak"]:
        documents = lists.headed_records(folder, where["weak"], "documents", DOCUMENT_COLUMNS, _document)
        texts.append((documents, "weak"))
    for records, split in texts:
        yield from lists.with_images(
            records, lambda record, split=split: image(record.key, split, record.file, record.row, implied=True)
        )
    for below, names in folder.walk(images):
        for name in (posixpath.join(below, name) for name in names if is_image(name)):
            yield image(name, options.default_split, folder.label(images or folder.root), None, implied=True)
    if where["boxes"]:
        yield from lists.headed_records(folder, where["boxes"], "boxes", BOX_COLUMNS, _box)
    if where["metadata"]:
        yield from _metadata(folder, where["metadata"], options.own_columns)


def _metadata(folder: CollectionFolder, path: Path, own: Collection[str] | None) -> Iterator[ColumnsRecord | Reject]:
    """Yield the values of the user's own columns for each row of a table, or a Reject for a row without a file name.

    `own` has the names of the columns to read, or is None to read all. If no column has one of the names FILE_COLUMNS,
    raises InputError for a CSV, TSV or Parquet table, and rejects each row of a JSONL table.
    """
    present = usual_names(column_names(folder, path))
    key = next((present[name] for name in FILE_COLUMNS if name in present), FILE_COLUMNS[0])
    file = folder.label(path)
    for row, values, fault in read_rows(folder, path, (key,), (key,), own):
        if isinstance(name := values.get(key), str) and name:
            yield ColumnsRecord(name, other_values(values, path, (key,)), file, row)
        else:
            yield Reject(file, row, "columns", fault or f"no file name in column {key}: write one, or remove the row")


def usual_names(columns: list[str]) -> dict[str, str]:
    """Return the columns by their names in the spelling of FILE_COLUMNS: lower case, with underscores between words."""
    return {name.lower().strip().replace(" ", "_").replace("-", "_"): name for name in reversed(columns)}


def _sentence(fields: list[str], file: str, row: int) -> SentenceRecord:
    name, *numbers, text = fields
    value = lists.sentence_number(numbers[0]) if numbers else None
    if numbers and value is None:
        raise ValueError(
            "wrong number of the caption: the second field must be a whole number from 0, not"
            f" {numbers[0][:MAX_SHOWN_CHARACTERS]!r}"
        )
    if not numbers and lists.sentence_number(text) is not None:
        raise ValueError(
            f"no caption: the row has only a file name and the number {text}. Write the caption after a tab"
        )
    return SentenceRecord(name, value, text, file, row)


def _document(fields: list[str], file: str, row: int) -> DocumentRecord:
    name, title, tags, description = fields
    return DocumentRecord(name, title, tags, description, file, row)


def _box(fields: list[str], file: str, row: int) -> BoxRecord:
    name, *numbers, text = fields
    try:
        x1, y1, x2, y2, score = map(float, numbers)
    except ValueError:
        raise ValueError(
            f"not five numbers: x1, y1, x2, y2 and score are {', '.join(numbers)}. Correct these values"
        ) from None
    return BoxRecord(name, x1, y1, x2, y2, score, text, file, row)


def read_text_files(root: Path, options: Options) -> Iterator[Record]:
    """Yield the records of a folder with text files next to the photos, in the order of the photos' paths.

    A folder belongs to the split under which collection.files names the folder, or else to the split in the name of the
    folder, such as `val2017`. A photo gets the split of the nearest folder above it that belongs to a split, or else
    the default split.
    """
    folder = CollectionFolder(root, options)
    splits = lists.split_folders([below for below, names in folder.walk() if any(map(is_image, names))])
    splits |= {folder.label(path): split for split, path in folder.locate(TEXT_FILES).items() if path}
    for below, names in folder.walk():
        above = map(str, (PurePosixPath(below), *PurePosixPath(below).parents))
        of_split = next((path for path in above if path in splits), "")
        split = splits.get(of_split, options.default_split)
        if of_split:
            note = f"photos are in the split {split}, after the name of their folder {of_split}"
            options.tally.notes[f"{note} (rename it if it is an album)"] += sum(map(is_image, names))
        yield from _read_folder(folder, below, names, split)


def described_by(name: str) -> str:
    """Return the name of the photo that a JSON file of this name describes in Google Takeout, such as a.jpg for
    a.jpg.json. Return "" if the name is not of this kind."""
    match = TAKEOUT_JSON.fullmatch(name)
    photo = f"{match[1]}{match[3] or ''}{match[2]}" if match else ""
    return photo if is_image(photo) else ""


def _read_folder(folder: CollectionFolder, below: str, names: list[str], split: str) -> Iterator[Record]:
    text_names = [name for name in names if name.lower().endswith(".txt")]
    texts = {posixpath.splitext(name)[0]: posixpath.join(below, name) for name in text_names}
    descriptions = {photo: posixpath.join(below, name) for name in names if (photo := described_by(name))}
    unused = dict(texts)
    for name in names:
        if is_image(name):
            path = posixpath.join(below, name)
            yield ImageRecord(path, path, split, path)
            for stem in (posixpath.splitext(name)[0], name):
                if stem in texts:
                    yield from _sentences_beside(folder, path, texts[stem])
                    unused.pop(stem, None)
            if name in descriptions:
                yield from _description(folder, path, descriptions[name])
    for file in unused.values():
        reason = "unknown image: no photo next to this file has its name. Give the file the name of its photo"
        yield Reject(file, None, "sentences", reason)


def _sentences_beside(folder: CollectionFolder, key: str, file: str) -> Iterator[SentenceRecord | Reject]:
    try:
        with folder.open_below(file, lists.MAX_TEXT_BYTES) as text:
            for row, line in lists.lines(text, file):
                if isinstance(line, bytes):
                    yield Reject(file, row, "sentences", lists.not_utf8(line))
                else:
                    yield SentenceRecord(key, None, line, file, row)
    except InputError as error:
        yield Reject(file, None, "sentences", str(error))


def _description(folder: CollectionFolder, key: str, file: str) -> Iterator[SentenceRecord | Reject]:
    try:
        with folder.open_below(file, lists.MAX_TEXT_BYTES) as text:
            value = lists.parse_json(text.read())
    except (InputError, ValueError) as error:
        yield Reject(file, None, "sentences", f"not JSON: {error}")
        return
    if isinstance(value, dict) and value.get("description"):
        yield SentenceRecord(key, None, value["description"], file)
    else:
        folder.tally.notes["JSON files next to photos have no description"] += 1

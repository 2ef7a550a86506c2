"""The readers of all collection formats, and the files that each format reads.

A reader is a function `read(root, options)`. It yields the records of the collection in the folder `root`, each image
before its texts and boxes. It does not read images, and opens files only through `CollectionFolder`. It raises
InputError if a file is unusable as a whole, and UsageError if `collection.files` or `collection.columns` is wrong. A
configuration can name a reader of your own by its import path. To add a format to jointspace, add its reader and its
lists here, and its name to `pipeline.config.collection`.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline.collections.files import ARCHIVES, CollectionFolder, Exclusion, is_image
from pipeline.collections.formats import published, table, vectors, webdataset
from pipeline.collections.formats.folder import FOLDER, described_by, read_folder, read_text_files
from pipeline.collections.records import Options, Record
from pipeline.config.registry import import_allowed

if TYPE_CHECKING:
    from pipeline.collections.tables import Tables

FORMATS: Mapping[str, Callable[[Path, Options], Iterator[Record]]] = {
    "folder": read_folder,
    "flickr-token": published.read_flickr_token,
    "karpathy": published.read_karpathy,
    "coco": published.read_coco,
    "pascal1k": published.read_pascal1k,
    "table": table.read_table,
    "text-files": read_text_files,
    "webdataset": webdataset.read,
    "parquet": table.read_parquet,
    vectors.FORMAT: vectors.read,
}
NAMED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "folder": FOLDER,
    "flickr-token": published.FLICKR_TOKEN,
    "karpathy": published.KARPATHY,
    "coco": published.COCO,
    "pascal1k": published.PASCAL1K,
    "table": table.TABLE,
    vectors.FORMAT: vectors.VECTORS,
}
"""The usual names of each key of collection.files, for each format that reads lists."""
SHARDS: Mapping[str, str] = {"webdataset": webdataset.SHARDS, "parquet": table.SHARDS}
"""The usual pattern of shards, for each format whose photos are inside files."""

UNNAMED = "photos that no list names"
NOT_READ = "neither photos nor lists that the format reads"
BESIDE_SHARDS = "photos next to the shards that the format reads"
MAX_SUFFIX_CHARACTERS = 10
"""Largest number of characters of a suffix, with its dot, by which files that are not read are counted. Files without a
suffix, with a longer suffix, or with a suffix of characters other than letters and digits are counted as `others`."""


def read(form: str, root: Path, options: Options) -> Iterator[Record]:
    """Return the records of the collection in the folder `root`, without the images that `collection.exclude` leaves
    out, and without the records of these images.

    `form` is the name of a format, or the import path of a reader.
    """
    reader = import_allowed("format", form) if ":" in form else FORMATS[form]
    records = reader(root, options)
    return Exclusion(options.exclude).without_excluded(records, options.tally) if options.exclude else records


def list_files(root: Path, form: str, given: Mapping[str, str]) -> list[Path]:
    """Return the lists of a collection in the format `form`, or [] if the format has no lists.

    `given` is collection.files. Raises UsageError if `root` is not a folder, if `given` has an unknown key or a file
    that does not exist, if several files match a name in `given` or the usual name of a list, or if there is no file of
    vectors in the format `vectors`.
    """
    return _lists(CollectionFolder(root, Options(given, {}, "train")), form) if form in NAMED else []


def describe_state(root: Path, form: str, given: Mapping[str, str], exclude: tuple[str, ...] = ()) -> str:
    """Return a text with the number of a collection's files, and a digest of their names, sizes and modification times.

    The text changes if a file is added, removed or changed. `given` and `exclude` are collection.files and
    collection.exclude. The files are photos and lists, the texts of `text-files`, and the shards of formats with
    shards. If `form` is the import path of a reader, they are all files that are not ignored. As in `ingest`, links to
    folders are followed only directly under the root. No file is opened. Raises UsageError in the cases that
    `list_files` describes, and InputError if a folder cannot be read.
    """
    folder = CollectionFolder(root, Options(given, {}, "train", exclude=exclude))
    names = _lists_and_shards(folder, form, given)
    # The reader of a user's own format may open any file.
    is_user_format = ":" in form
    names |= {name for name, ignored in folder.files() if not ignored and (is_user_format or _is_read(name, form))}
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(os.fsencode(f"{name}\0{folder.state(name)}\0"))
    return f"{len(names)} files, {digest.hexdigest()[:16]}"


def count_files(root: Path, form: str, options: Options, tables: "Tables", takedown: bool = False) -> None:
    """Count every file below `root` in the tally of the `options`, as read or as ignored for a reason. If
    collection.files names shards without a pattern, only these shards are counted.

    `tables` are the tables of an intake, with the images that a list or the format names. If `takedown` is true, the
    images of a takedown list have been removed from these tables.
    """
    folder = CollectionFolder(root, options)
    tally = options.tally
    named = _lists_and_shards(folder, form, options.files)
    if form in SHARDS and options.files and not any("*" in pattern for pattern in options.files.values()):
        # If collection.files names the shards individually, other files in the folder are not part of the collection.
        for _ in named:
            tally.add(None)
        return
    tables.create({"found_photos": pa.schema([("path", pa.binary())])})
    for path, reason in folder.files():
        if reason is not None or path in named or (not is_image(path) and _is_read(path, form)):
            tally.add(reason)
        elif is_image(path) and form not in SHARDS:
            tables.append("found_photos", (os.fsencode(path),))
        else:
            tally.add(BESIDE_SHARDS if is_image(path) else _not_read(path))
    count = tables.value("SELECT count(*) FROM found_photos")
    named_paths = "SELECT encode(path) FROM images WHERE path IS NOT NULL"
    unnamed = tables.value(f"SELECT count(*) FROM found_photos WHERE path NOT IN ({named_paths})")
    tally.given += count
    tally.read += count - unnamed
    if unnamed:
        tally.left_out[UNNAMED + " or that are taken down" * takedown] += unnamed


def _not_read(path: str) -> str:
    """Return why a file is not read, with its suffix, or `others` for an unusual suffix."""
    suffix = Path(path).suffix.lower()
    kind = suffix if 1 < len(suffix) <= MAX_SUFFIX_CHARACTERS and suffix[1:].isalnum() else "others"
    return f"{'packed: unpack them first' if suffix in ARCHIVES else NOT_READ} ({kind})"


def _lists(folder: CollectionFolder, form: str) -> list[Path]:
    if form == vectors.FORMAT:
        return vectors.list_files(folder)
    where = folder.locate(NAMED[form])
    table = where.get("table")
    several = folder.tables(table) if table else []
    return [path for path in dict.fromkeys([*where.values(), *several]) if path and path.is_file()]


def _lists_and_shards(folder: CollectionFolder, form: str, given: Mapping[str, str]) -> set[str]:
    """Return the names of the files that a format reads, except photos and the texts of `text-files`."""
    if form in NAMED:
        return {folder.label(path) for path in _lists(folder, form)}
    patterns = (given.values() or [SHARDS[form]]) if form in SHARDS else ()
    return {folder.label(path) for pattern in patterns for path in folder.glob(pattern)}


def _is_read(name: str, form: str) -> bool:
    """Return whether the format reads a file of this name as a photo or a text. A format with shards reads neither."""
    if form in SHARDS:
        return False
    return is_image(name) or (form == "text-files" and (name.lower().endswith(".txt") or bool(described_by(name))))

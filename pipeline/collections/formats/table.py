"""A CSV, TSV, JSONL or Parquet table with named columns, one row a sentence or an image.

collection.columns renames columns; the default names are `file` (relative to the images' folder), `sentence` (a text or
a list of texts), and optionally `split`, `title`, `tags` and `description`. All others are the user's own.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.collections.formats import lists
from pipeline.collections.formats.rows import further, is_text, read_rows
from pipeline.collections.records import LISTED, ColumnsRecord, ImageRecord, Options, Record, Reject, SentenceRecord
from pipeline.collections.remote_files import open_collection
from pipeline.errors import UsageError

FILES = {"table": ("*.csv", "*.tsv", "*.jsonl", "*.parquet"), "images": (".",)}
COLUMNS = ("file", "sentence", "split", "title", "tags", "description")
DOCUMENT = COLUMNS[3:]
SURROGATE = re.compile("[\udc80-\udcff]")
"""In place of a byte that is not UTF-8."""


def read(root: Path, options: Options) -> Iterator[Record]:
    """The records of a table in its order; an image takes its split, weak text and own columns from its first row."""
    folder = open_collection(root, options)
    where = folder.locate(FILES)
    path = folder.require(where["table"], "table", FILES["table"])
    if unknown := set(options.columns) - set(COLUMNS):
        raise UsageError(f"collection.columns: unknown key {min(unknown)}; there are {', '.join(COLUMNS)}")
    names = {column: options.columns.get(column, column) for column in COLUMNS}
    if is_text(path):
        names = {column: name.strip() for column, name in names.items()}
    needed = {names[column] for column in (*options.columns, "file")}
    file, prefix = folder.label(path), folder.image_prefix(where["images"])
    last = None
    for row, values, fault in read_rows(folder, path, tuple(names.values()), needed, options.own_columns):
        name = values.get(names["file"])
        if not isinstance(name, str) or not name:
            yield Reject(file, row, "sentences", fault or f"no file name in column {names['file']}")
            continue
        if name != last:
            split = values.get(names["split"]) or options.default_split
            yield ImageRecord(name, posixpath.join(prefix, name), lists.split_name(str(split)), file, row, implied=True)
            yield from lists.document(name, [values.get(names[column]) for column in DOCUMENT], file, row, implied=True)
            yield ColumnsRecord(name, further(values, path, names.values()), file, row)
        sentences, in_text = lists.sentences(values.get(names["sentence"]))
        options.tally.notes[LISTED] += in_text
        for text in sentences:
            if is_text(path) and not text.isascii() and SURROGATE.search(text):
                yield Reject(file, row, "sentences", lists.not_utf8(text))
            else:
                yield SentenceRecord(name, None, text, file, row)
        last = name

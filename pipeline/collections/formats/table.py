"""A table with named columns: CSV, TSV, JSON, JSONL or Parquet, one row a sentence or an image; or Parquet files with
the photographs in them.

collection.columns renames columns; the default names are `file` (relative to the images' folder), `sentence` (a text or
a list of texts), and optionally `split`, `title`, `tags` and `description`. All others are the user's own. What
collection.files names by a split is a further table, of that split.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pyarrow as pa

from pipeline.collections.files import CollectionFolder
from pipeline.collections.formats import lists
from pipeline.collections.formats.rows import EITHER, further, is_text, read_rows, rows_without, schema
from pipeline.collections.records import DIVIDED, ColumnsRecord, ImageRecord, Options, Record, Reject, SentenceRecord
from pipeline.config.section import SPLITS
from pipeline.errors import InputError, UsageError
from pipeline.foreign.image_names import relative_name
from pipeline.foreign.parquet import photograph_column

FURTHER = tuple(split for split in SPLITS if split != "train")
TABLE = {"table": ("*.csv", "*.tsv", "*.jsonl", "*.parquet"), **dict.fromkeys(FURTHER, ()), "images": (".",)}
METADATA = "metadata"
"""What the Hugging Face hub calls a table whose names of photographs are relative to its own folder."""
SHARDS = "**/*.parquet"
COLUMNS = ("file", "sentence", "split", "title", "tags", "description")
DOCUMENT = COLUMNS[3:]
SURROGATE = re.compile("[\udc80-\udcff]")
"""In place of a byte that is not UTF-8."""
NUMBERED = re.compile(r"[-_.].*", re.DOTALL)
"""What follows the split in the name of a shard: `train-00000-of-00002.parquet`."""


def read_table(root: Path, options: Options) -> Iterator[Record]:
    """The records of each table in its order; an image takes its split, weak text and own columns from its first
    row."""
    folder = CollectionFolder(root, options)
    where = folder.locate(TABLE)
    first = folder.require(where["table"], "table", TABLE["table"])
    prefix = folder.image_prefix(where["images"])
    for path in folder.tables(first):
        yield from _read_rows(folder, path, prefix, options.default_split, options)
    for split in FURTHER:
        if where[split]:
            yield from _read_rows(folder, where[split], prefix, split, options)


def _read_rows(
    folder: CollectionFolder, path: Path, prefix: str, default_split: str, options: Options
) -> Iterator[Record]:
    names = _column_names(options, COLUMNS)
    if is_text(path):
        names = {column: name.strip() for column, name in names.items()}
    needed = {names[column] for column in (*options.columns, "file")}
    file = folder.label(path)
    below = PurePosixPath(file if path.stem.lower() == METADATA else "").parent
    if below.is_relative_to(prefix):
        below = below.relative_to(prefix)
    folders = () if ".." in below.parts else below.parts  # a table outside is of the photographs in the root
    last = None
    for row, values, fault in read_rows(folder, path, tuple(names.values()), needed, options.own_columns):
        name = values.get(names["file"])
        if not fault and (name is None or not str(name).strip()):
            options.tally.notes[f"rows of {file} name no photo and are left out"] += 1
            continue
        name = str(name) if type(name) is int else name
        if not isinstance(name, str):
            yield Reject(file, row, "sentences", fault or f"no file name in column {names['file']}")
            continue
        name = posixpath.join(*folders, name)
        if name != last:
            split = values.get(names["split"]) or default_split
            yield ImageRecord(name, posixpath.join(prefix, name), lists.split_name(str(split)), file, row, implied=True)
            yield from lists.document(name, [values.get(names.get(ours)) for ours in DOCUMENT], file, row, implied=True)
            yield ColumnsRecord(name, further(values, path, names.values()), file, row)
        for text in lists.sentences(values.get(names["sentence"]), options.tally):
            if is_text(path) and not text.isascii() and SURROGATE.search(text):
                yield Reject(file, row, "sentences", lists.not_utf8(text))
            else:
                yield SentenceRecord(name, None, text, file, row)
        last = name


def read_parquet(root: Path, options: Options) -> Iterator[Record]:
    """Parquet files as the Hugging Face hub has them, read in place, in the order of their names: a row is an image,
    of which a column has the photograph, as `{bytes, path}` or as bytes.

    collection.files may name a pattern of shards for each split, or for `divided`. By default all are read, each in the
    split with which its name begins or that its folder is called after, as the hub has them, unless that is one of
    train, dev and test for all of them.
    """
    folder = CollectionFolder(root, options)
    folder.check_keys((*SPLITS, DIVIDED))
    names = _column_names(options, COLUMNS[1:])
    splits: dict[Path, str] = {}
    for split, pattern in (options.files or {None: SHARDS}).items():
        shards = folder.glob(pattern)
        if not shards:
            raise folder.lacks(f"Parquet files {pattern}", f"correct collection.files.{split or DIVIDED} or data_root")
        for path in shards:
            parts = (NUMBERED.sub("", path.name), *reversed(PurePosixPath(folder.label(path)).parent.parts))
            named = (part for part in map(lists.split_name, parts) if part in SPLITS)
            splits[path] = split or next(named, options.default_split)
    if not options.files and len(named := {*splits.values()}) == 1 and named < {"train", "dev", "test"}:
        splits = dict.fromkeys(splits, options.default_split)
    for path, split in splits.items():
        try:
            yield from _read_shard(folder, path, split, names, options)
        except InputError as error:
            yield Reject(folder.label(path), None, "images", str(error).removeprefix(f"{path} "))


def _column_names(options: Options, ours: tuple[str, ...]) -> dict[str, str]:
    if unknown := set(options.columns) - set(ours):
        raise UsageError(f"collection.columns: unknown key {min(unknown)}; there are {', '.join(ours)}")
    # A title that is read as the sentence is not the title, too.
    renamed = {name for theirs in options.columns.values() for name in theirs.split(EITHER)}
    names = {column: column for column in ours if column not in DOCUMENT or column not in renamed}
    return names | options.columns


def _read_shard(
    folder: CollectionFolder, path: Path, split: str, names: dict[str, str], options: Options
) -> Iterator[Record]:
    fields, shard = schema(folder, path), folder.label(path)
    if (column := photograph_column(fields)) is None:
        raise InputError(f"{path} has no column of photos (bytes, or structs of bytes and path)")
    leaf = (column, "bytes") if pa.types.is_struct(fields.field(column).type) else (column,)
    without = rows_without(folder, path, leaf)
    options.tally.notes["rows of Parquet files have no photo and are left out"] += len(without)
    needed = [names[ours] for ours in options.columns]
    for row, values, _ in read_rows(folder, path, (f"{column}.path", *names.values()), needed, options.own_columns):
        if row in without:
            continue
        photograph = values.get(column)
        name = photograph.get("path") if isinstance(photograph, dict) else None
        member = posixpath.basename(relative_name(name or "")) or f"row {row}"
        key, asked = f"{shard}/{row}", lists.split_name(str(values.get(names["split"]) or split))
        yield ImageRecord(key, shard, asked, shard, row, member, row - 1)
        yield from lists.document(key, [values.get(names.get(ours)) for ours in DOCUMENT], shard, row)
        yield ColumnsRecord(key, further(values, path, (column, *names.values())), shard, row)
        for text in lists.sentences(values.get(names["sentence"]), options.tally):
            yield SentenceRecord(key, None, text, shard, row)

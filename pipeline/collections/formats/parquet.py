"""Parquet files with the photographs in them, as the Hugging Face hub has them, read in place: a row is an image.

A column holds the photographs, as `{bytes, path}` or as bytes; others hold the sentence, and optionally `split`,
`title`, `tags` and `description`. All others of plain values are the user's own.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.collections.files import CollectionFolder
from pipeline.collections.formats import lists
from pipeline.collections.formats.rows import further, photographs_in, read_rows
from pipeline.collections.formats.table import COLUMNS, DOCUMENT
from pipeline.collections.records import (
    DIVIDED,
    LISTED,
    ColumnsRecord,
    ImageRecord,
    Options,
    Record,
    Reject,
    SentenceRecord,
)
from pipeline.collections.remote_files import open_collection
from pipeline.config.section import SPLITS
from pipeline.errors import InputError, UsageError

SHARDS = "**/*.parquet"
NUMBERED = re.compile(r"[-_.].*", re.DOTALL)
"""What follows the split in the name of a shard: `train-00000-of-00002.parquet`."""


def read(root: Path, options: Options) -> Iterator[Record]:
    """The records of every shard, in the order of the shards' names.

    collection.files may name a pattern of shards for each split, or for `divided`; by default all are read, each in the
    split with which its name begins, as the hub has them, unless that is `train` for all of them.
    """
    folder = open_collection(root, options)
    folder.check_keys((*SPLITS, DIVIDED))
    if unknown := set(options.columns) - {*COLUMNS[1:]}:
        raise UsageError(f"collection.columns: unknown key {min(unknown)}; there are {', '.join(COLUMNS[1:])}")
    splits: dict[Path, str] = {}
    for split, pattern in (options.files or {None: SHARDS}).items():
        # Patterns match under the root; for an absolute one, pathlib raises an exception of its own.
        shards = [] if Path(pattern).is_absolute() else folder.glob(pattern)
        if not shards:
            raise folder.lacks(f"Parquet files {pattern}", f"correct collection.files.{split or DIVIDED} or data_root")
        splits |= {path: split or _split_of(path.name) or options.default_split for path in shards}
    if not options.files and set(splits.values()) == {"train"}:
        splits = dict.fromkeys(splits, options.default_split)
    for path, split in splits.items():
        try:
            yield from _read_shard(folder, path, split, options)
        except InputError as error:
            yield Reject(folder.label(path), None, "images", str(error))


def _split_of(name: str) -> str | None:
    split = lists.split_name(NUMBERED.sub("", name.lower()))
    return split if split in SPLITS else None


def _read_shard(folder: CollectionFolder, path: Path, split: str, options: Options) -> Iterator[Record]:
    column, shard = photographs_in(folder, path), folder.label(path)
    if column is None:
        raise InputError(f"{path} has no column of photographs (bytes, or structs of bytes and path)")
    names = {ours: options.columns.get(ours, ours) for ours in COLUMNS[1:]}
    needed = [names[ours] for ours in options.columns]
    for row, values, _ in read_rows(folder, path, (f"{column}.path", *names.values()), needed, options.own_columns):
        named = values.get(column)
        name = named.get("path") if isinstance(named, dict) else None
        member = posixpath.basename((name or "").replace("\\", "/")) or f"row {row}"
        key, asked = f"{shard}/{row}", lists.split_name(str(values.get(names["split"]) or split))
        yield ImageRecord(key, shard, asked, shard, row, member, row - 1)
        yield from lists.document(key, [values.get(names[ours]) for ours in DOCUMENT], shard, row)
        yield ColumnsRecord(key, further(values, path, (column, *names.values())), shard, row)
        sentences, in_text = lists.sentences(values.get(names["sentence"]))
        options.tally.notes[LISTED] += in_text
        for text in sentences:
            yield SentenceRecord(key, None, text, shard, row)

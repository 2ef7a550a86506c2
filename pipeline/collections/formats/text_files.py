"""Photographs in a folder, at any depth, with a `.txt` of the same stem beside each, one sentence a line."""

import posixpath
from collections.abc import Iterator
from pathlib import Path

from pipeline.collections.files import CollectionFolder, is_image
from pipeline.collections.formats import lists
from pipeline.collections.records import ImageRecord, Options, Record, Reject, SentenceRecord
from pipeline.collections.remote_files import open_collection
from pipeline.config.section import SPLITS
from pipeline.errors import InputError

FILES = {**{split: (split,) for split in SPLITS}, "dev": ("dev", "val")}
"""The splits' folders; images outside them go to the default split."""
LARGEST_TEXT = 1 << 24  # bytes of the sentences of one photograph


def read(root: Path, options: Options) -> Iterator[Record]:
    """The records of a folder in the order of the paths. Hidden files are skipped."""
    folder = open_collection(root, options)
    splits = {folder.label(path): split for split, path in folder.locate(FILES).items() if path}
    for below, names in folder.walk():
        split = next((splits[path] for path in _with_parents(below) if path in splits), options.default_split)
        yield from _read_folder(folder, below, names, split)


def _is_text(name: str) -> bool:
    return name.lower().endswith(".txt")


def _with_parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = posixpath.dirname(path)


def _read_folder(folder: CollectionFolder, below: str, names: list[str], split: str) -> Iterator[Record]:
    texts = {posixpath.splitext(name)[0]: posixpath.join(below, name) for name in names if _is_text(name)}
    unused = dict(texts)
    for name in names:
        stem = posixpath.splitext(name)[0]
        if is_image(name):
            path = posixpath.join(below, name)
            yield ImageRecord(path, path, split, path)
            if stem in texts:
                yield from _sentences(folder, path, texts[stem])
                unused.pop(stem, None)
    for file in unused.values():
        yield Reject(file, None, "sentences", "unknown image: none of this stem")


def _sentences(folder: CollectionFolder, key: str, file: str) -> Iterator[SentenceRecord | Reject]:
    number = 0
    try:
        with folder.open_below(file, LARGEST_TEXT) as text:
            for row, line in lists.lines(text, file):
                if isinstance(line, bytes):
                    yield Reject(file, row, "sentences", lists.not_utf8(line))
                else:
                    yield SentenceRecord(key, number, line, file, row)
                    number += 1
    except InputError as error:
        yield Reject(file, None, "sentences", str(error))

"""Photographs in a folder, at any depth, each with a `.txt` of the same stem beside it, one sentence a line."""

import posixpath
from collections.abc import Iterator
from pathlib import Path

from pipeline.collections.formats import files
from pipeline.collections.records import NOT_UTF8, SPLITS, ImageRecord, Options, Record, Reject, SentenceRecord

FILES = {**{split: (split,) for split in SPLITS}, "dev": ("dev", "val")}
"""Folders of their own for the splits; whatever is in none of them goes to the default split."""


def read(root: Path, options: Options) -> Iterator[Record]:
    """The records of a folder in the order of the paths. Hidden files are passed over."""
    where = files.locate(root, options.files, FILES)
    splits = {files.label(root, path): split for split, path in where.items() if path}
    for below, names in files.walk(root):
        split = next((splits[path] for path in _with_parents(below) if path in splits), options.default_split)
        yield from _read_folder(root, below, names, split)


def _with_parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = posixpath.dirname(path)


def _read_folder(root: Path, below: str, names: list[str], split: str) -> Iterator[Record]:
    stems: set[str] = set()
    texts = {posixpath.splitext(name)[0] for name in names if name.lower().endswith(".txt")}
    for name in names:
        stem = posixpath.splitext(name)[0]
        if files.is_image(name):
            path = posixpath.join(below, name)
            yield ImageRecord(path, path, split, path)
            if stem in texts:
                yield from _sentences(root, path, posixpath.join(below, f"{stem}.txt"))
                stems.add(stem)
    for stem in sorted(texts - stems):
        yield Reject(posixpath.join(below, f"{stem}.txt"), None, "sentences", "unknown image: none of this stem")


def _sentences(root: Path, key: str, file: str) -> Iterator[SentenceRecord | Reject]:
    number = 0
    for row, line in files.lines(root / file):
        if line is None:
            yield Reject(file, row, "sentences", NOT_UTF8)
        else:
            yield SentenceRecord(key, number, line, file, row)
            number += 1

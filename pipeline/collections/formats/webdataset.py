"""Tar shards as webdataset and img2dataset write them, read in place: no member is ever unpacked.

Adjacent members that differ only in their suffix are one sample: the image, its sentences (`.txt`, one a line, else the
`.json`'s `caption`), weak text (the `.json`'s `title`, `tags` and `description`), and own columns (its other keys).
"""

import math
import os
import posixpath
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from pipeline.collections.formats import lists
from pipeline.collections.formats.files import CollectionFolder, is_image
from pipeline.collections.formats.remote_files import open_collection
from pipeline.collections.records import (
    DIVIDED,
    NOT_UTF8,
    ColumnsRecord,
    ImageRecord,
    Options,
    Record,
    Reject,
    SentenceRecord,
)
from pipeline.collections.tars import DamagedTar, TarMember, members
from pipeline.errors import InputError
from pipeline.settings.section import SPLITS

DOCUMENT = ("title", "tags", "description")
SHARDS = "**/*.tar"
LARGEST_TEXT = 1 << 24


def read(root: Path, options: Options) -> Iterator[Record]:
    """The records of every shard, in the order of the shards' names.

    collection.files may name a pattern of shards for each split, or for `divided`; the default is `**/*.tar` for the
    default split.
    """
    folder = open_collection(root, options)
    folder.check_keys((*SPLITS, DIVIDED))
    for split, pattern in (options.files or {options.default_split: SHARDS}).items():
        # Patterns match under the root; for an absolute one, pathlib raises an exception of its own.
        shards = [] if Path(pattern).is_absolute() else folder.glob(pattern)
        if not shards:
            raise folder.lacks(f"tar shards {pattern}", f"correct collection.files.{split} or data_root")
        for path in shards:
            yield from _read_shard(folder, folder.label(path), split)


def _read_shard(folder: CollectionFolder, shard: str, split: str) -> Iterator[Record]:
    try:
        with folder.open_below(shard, math.inf) as file:
            for stem, sample in groupby(_members(file.fileno(), shard), _stem):
                yield from _read_sample(file.fileno(), shard, stem, split, list(sample))
    except (InputError, OSError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        reason = str(error) if isinstance(error, InputError) else f"damaged: {type(error).__name__}: {error}"
        yield Reject(shard, None, "images", reason)


def _stem(member: TarMember | Reject) -> str | None:
    return None if isinstance(member, Reject) else posixpath.splitext(member.name)[0]


def _members(descriptor: int, shard: str) -> Iterator[TarMember | Reject]:
    """The files in a shard; a Reject for any other member, and for damage, where reading ends."""
    try:
        for member in members(descriptor):
            if member.kind == "file":
                yield member
            elif member.kind == "other":
                yield Reject(shard, None, _what(member), f"not a plain file but a link or the like: {member.name!r}")
    except DamagedTar as error:
        yield Reject(shard, None, "images", str(error))


def _what(member: TarMember) -> str:
    suffix = posixpath.splitext(member.name)[1].lower()
    return {".txt": "sentences", ".json": "documents"}.get(suffix, "images")


def _read_sample(
    descriptor: int, shard: str, stem: str | None, split: str, given: list[TarMember | Reject]
) -> Iterator[Record]:
    if stem is None:
        yield from given
        return
    key = f"{shard}/{stem}"
    parts: dict[str, TarMember] = {}
    for member in given:
        suffix = posixpath.splitext(member.name)[1].lower()
        part = "image" if is_image(member.name) else suffix
        if part in parts:
            yield Reject(shard, None, _what(member), f"duplicate: a second {part} of sample {stem!r}")
        else:
            parts[part] = member
    if image := parts.get("image"):
        yield ImageRecord(key, shard, split, shard, None, image.name, image.offset, image.size)
    text = parts.get(".txt")
    if text and (value := _text(descriptor, text)) is not None:
        lines = (line.removesuffix("\r") for line in value.split("\n"))
        for number, line in enumerate(line for line in lines if line):
            yield SentenceRecord(key, number, line, f"{shard}/{text.name}")
    elif text:
        reason = NOT_UTF8 if text.size <= LARGEST_TEXT else f"too long: {text.size} bytes, more than {LARGEST_TEXT}"
        yield Reject(f"{shard}/{text.name}", None, "sentences", reason)
    if description := parts.get(".json"):
        yield from _read_json(descriptor, key, f"{shard}/{description.name}", description, with_sentences=not text)


def _read_json(descriptor: int, key: str, file: str, member: TarMember, with_sentences: bool) -> Iterator[Record]:
    try:
        value = lists.parse_json(_text(descriptor, member) or "")
        if not isinstance(value, dict):
            raise ValueError("not an object")
    except ValueError as error:
        yield Reject(file, None, "documents", f"not JSON: {error}")
        return
    captions = value.get("caption")
    captions = captions if isinstance(captions, list) else [captions]
    if with_sentences:
        for number, text in enumerate(text for text in captions if text is not None):
            yield SentenceRecord(key, number, text, file)
    yield from lists.document(key, [value.get(name) for name in DOCUMENT], file)
    if own := {name: one for name, one in value.items() if name not in ("caption", *DOCUMENT)}:
        yield ColumnsRecord(key, own, file)


def _text(descriptor: int, member: TarMember) -> str | None:
    """The member as text; None if it is not UTF-8 or longer than LARGEST_TEXT."""
    return lists.decode_text(os.pread(descriptor, member.size, member.offset)) if member.size <= LARGEST_TEXT else None

"""Tar shards as webdataset and img2dataset write them, read in place: no member is ever unpacked.

Members that stand together and differ in their suffix only are one sample: the image, its sentences (`.txt`, one a
line, else `caption` of the `.json`), and weak text (`title`, `tags`, `description` of the `.json`).
"""

import posixpath
import tarfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from pipeline.collections.formats import files
from pipeline.collections.records import (
    NOT_UTF8,
    SPLITS,
    DocumentRecord,
    ImageRecord,
    Options,
    Record,
    Reject,
    SentenceRecord,
)
from pipeline.errors import UsageError

DOCUMENT = ("title", "tags", "description")
LARGEST_TEXT = 1 << 24


def read(root: Path, options: Options) -> Iterator[Record]:
    """The records of every shard, in the order of the shards' names.

    collection.files may give each split a pattern of its shards; the default is `**/*.tar` for the default split.
    """
    if unknown := set(options.files) - set(SPLITS):
        raise UsageError(f"collection.files: unknown key {min(unknown)}; this format has {', '.join(SPLITS)}")
    for split, pattern in (options.files or {options.default_split: "**/*.tar"}).items():
        # A pattern is of shards under the root; pathlib refuses an absolute one with an exception of its own.
        shards = [] if Path(pattern).is_absolute() else sorted(root.glob(pattern))
        if not shards:
            raise UsageError(f"{root} has no tar shards {pattern}; correct collection.files.{split} or data_root")
        for path in shards:
            yield from _read_shard(path, files.label(root, path), split)


def _read_shard(path: Path, shard: str, split: str) -> Iterator[Record]:
    try:
        # "r:" refuses compression: a compressed shard cannot be read in place.
        with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
            for stem, sample in groupby(_members(tar, shard, path.stat().st_size), _stem):
                yield from _read_sample(tar, shard, stem, split, list(sample))
    except (tarfile.TarError, OSError) as error:
        yield Reject(shard, None, "images", f"not an uncompressed tar shard that can be read: {error}")


def _stem(member: tarfile.TarInfo | Reject) -> str | None:
    return None if isinstance(member, Reject) else posixpath.splitext(member.name)[0]


def _members(tar: tarfile.TarFile, shard: str, length: int) -> Iterator[tarfile.TarInfo | Reject]:
    """The files in a shard of `length` bytes; a Reject for whatever else stands there."""
    try:
        for member in tar:
            if member.offset_data + member.size > length:
                yield Reject(shard, None, _what(member), f"truncated: the shard ends inside of {member.name!r}")
                return
            if member.isreg() and not member.issparse():
                yield member
            elif not member.isdir():
                yield Reject(shard, None, _what(member), f"not a plain file but a link or the like: {member.name!r}")
        # tarfile takes any block that is no header for the end; the true end is a block of zeros.
        tar.fileobj.seek(tar.offset)
        if tar.fileobj.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE):
            return
    except tarfile.TarError:
        pass
    yield Reject(shard, None, "images", f"damaged: no header and no end of the shard at byte {tar.offset}")


def _what(member: tarfile.TarInfo) -> str:
    suffix = posixpath.splitext(member.name)[1].lower()
    return {".txt": "sentences", ".json": "documents"}.get(suffix, "images")


def _read_sample(
    tar: tarfile.TarFile, shard: str, stem: str | None, split: str, members: list[tarfile.TarInfo | Reject]
) -> Iterator[Record]:
    if stem is None:
        yield from members
        return
    key = f"{shard}/{stem}"
    parts: dict[str, tarfile.TarInfo] = {}
    for member in members:
        suffix = posixpath.splitext(member.name)[1].lower()
        part = "image" if files.is_image(member.name) else suffix
        if part in parts:
            yield Reject(shard, None, _what(member), f"duplicate: a second {part} of sample {stem!r}")
        else:
            parts[part] = member
    if image := parts.get("image"):
        yield ImageRecord(key, shard, split, shard, None, image.name, image.offset_data, image.size)
    text = parts.get(".txt")
    if text and (value := _text(tar, text)) is not None:
        lines = (line.removesuffix("\r") for line in value.split("\n"))
        for number, line in enumerate(line for line in lines if line):
            yield SentenceRecord(key, number, line, f"{shard}/{text.name}")
    elif text:
        yield Reject(f"{shard}/{text.name}", None, "sentences", NOT_UTF8)
    if description := parts.get(".json"):
        yield from _read_json(tar, key, f"{shard}/{description.name}", description, with_sentences=not text)


def _read_json(
    tar: tarfile.TarFile, key: str, file: str, member: tarfile.TarInfo, with_sentences: bool
) -> Iterator[Record]:
    try:
        value = files.parse_json(_text(tar, member) or "")
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
    document = [files.joined(value.get(name)) for name in DOCUMENT]
    if any(document):
        yield DocumentRecord(key, *document, file)


def _text(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str | None:
    """The member as text; None where it is not UTF-8, or far too long to be a text."""
    return files.decode_text(tar.extractfile(member).read()) if member.size <= LARGEST_TEXT else None

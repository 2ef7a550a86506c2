"""Tar shards as webdataset and img2dataset write them, read in place: no member is ever unpacked.

Members of one key are one sample, wherever they are in the shard: the key is the path up to the first dot of the base
name, as for webdataset. A sample has an image, sentences (`.txt`, one a line, else the `.json`'s `caption`), weak text
(the `.json`'s `title`, `tags` and `description`), and own columns (its other keys).
"""

import codecs
import math
import os
import posixpath
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pipeline.collections.exclusion import Exclusion
from pipeline.collections.files import IMAGE_SUFFIXES, CollectionFolder, is_image
from pipeline.collections.formats import lists
from pipeline.collections.records import (
    DIVIDED,
    ColumnsRecord,
    ImageRecord,
    Options,
    Record,
    Reject,
    SentenceRecord,
    Tally,
)
from pipeline.config.section import SPLITS
from pipeline.errors import InputError

DOCUMENT = ("title", "tags", "description")
SHARDS = "**/*.tar"
PHOTOGRAPHS = (".jpg", ".jpeg", ".png", ".webp", *sorted(IMAGE_SUFFIXES))
"""Suffixes of a sample's photograph, the first that it has; with none of these, its only image."""
DIGITS = re.compile(r"\d+")
LONGEST_SUFFIX = 24
LINE_END = re.compile(r"\r\n|\r|\n")
LARGEST_TEXT = 1 << 24
LARGEST_HEADER = 1 << 16
"""Bytes of a header that extends another one; a path has at most 4,096."""
LARGEST_NAMES = LARGEST_HEADER * 8
"""Bytes of all headers before one member: GNU tar writes up to two, pax one or two."""


class TarMember(NamedTuple):
    """A member: its name, the offset and number of its bytes, and its kind: `file`, `folder`, or `other` (a link, a
    device, a file with holes)."""

    name: str
    offset: int
    size: int
    kind: str


class DamagedTar(InputError):
    """Why a tar cannot be read any further."""


class _Headers:
    """The tar in an open file, as tarfile reads its headers, which it trusts: what they say is bounded here."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._position = 0
        self.since_member = 0

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        self._position = position

    def read(self, size: int) -> bytes:
        self.since_member += size
        if not 0 <= size <= LARGEST_HEADER or self.since_member > LARGEST_NAMES:
            raise DamagedTar(f"damaged: the headers at byte {self._position} are too many or too long for one member")
        data = os.pread(self._descriptor, size, self._position)
        self._position += len(data)
        return data


def members(descriptor: int) -> Iterator[TarMember]:
    """The members of the tar in an open file, in order. Raises DamagedTar where there is no header and no end."""
    length, headers, at = os.fstat(descriptor).st_size, _Headers(descriptor), 0
    try:
        with tarfile.TarFile(fileobj=headers, encoding="utf-8", errors="surrogateescape") as tar:
            while header := tar.next():
                headers.since_member = 0
                tar.members = []  # which it would keep
                stored = header.isreg() or header.type not in tarfile.SUPPORTED_TYPES  # else its size is of other data
                size = header.size if stored else 0
                if size < 0 or header.offset_data + size > length:
                    raise DamagedTar(f"truncated: the shard ends inside of {header.name[:99]!r}")
                plain = header.isreg() and not header.issparse()
                kind = "file" if plain else "folder" if header.isdir() else "other"
                yield TarMember(header.name, header.offset_data, size, kind)
                at = tar.offset
            at = tar.offset
    except tarfile.TarError as error:
        if at:
            raise DamagedTar(f"damaged: {error} after byte {at}") from error
        start = ascii(os.pread(descriptor, 16, 0))[1:]
        raise DamagedTar(f"not an uncompressed tar shard ({error}): it starts with {start}") from error
    if os.pread(descriptor, tarfile.BLOCKSIZE, at) != bytes(tarfile.BLOCKSIZE):
        raise DamagedTar(f"damaged: no header and no end of the shard at byte {at}")


def read(root: Path, options: Options) -> Iterator[Record]:
    """The records of every shard, in the order of the shards' names.

    collection.files may name a pattern of shards for each split, or for `divided`; the default is `**/*.tar` for the
    default split.
    """
    folder = CollectionFolder(root, options)
    folder.check_keys((*SPLITS, DIVIDED))
    for split, pattern in (options.files or {options.default_split: SHARDS}).items():
        shards = folder.glob(pattern)
        if not shards:
            raise folder.lacks(f"tar shards {pattern}", f"correct collection.files.{split} or data_root")
        for path in shards:
            yield from _read_shard(folder, folder.label(path), split, options.tally)


def _read_shard(folder: CollectionFolder, shard: str, split: str, tally: Tally) -> Iterator[Record]:
    try:
        with folder.open_below(shard, math.inf) as file:
            samples: dict[str, list[TarMember]] = {}
            for member in _members(file.fileno(), shard, folder.exclusion, tally):
                if isinstance(member, Reject):
                    yield member
                else:
                    samples.setdefault(_divide(member.name)[0], []).append(member)
            for key, sample in samples.items():
                yield from _read_sample(file.fileno(), shard, key, split, sample, tally)
    except (InputError, OSError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        reason = str(error) if isinstance(error, InputError) else f"damaged: {type(error).__name__}: {error}"
        yield Reject(shard, None, "images", reason)


def _divide(name: str) -> tuple[str, str]:
    """The key of a member, and its suffix in lower case: all that follows the first dot of its base name."""
    folder, slash, base = name.rpartition("/")
    key, dot, suffix = base.partition(".")
    return folder + slash + key, dot + suffix.lower()


def _members(descriptor: int, shard: str, exclusion: Exclusion, tally: Tally) -> Iterator[TarMember | Reject]:
    """The files in a shard; a Reject for any other member, and for damage, where reading ends."""
    try:
        for member in members(descriptor):
            if member.kind == "folder":
                continue
            if reason := _left_out(member.name, shard, exclusion):
                tally.add(reason)
            elif member.kind == "file":
                yield member
            else:
                tally.add(None)
                yield Reject(shard, None, _what(member), f"not a plain file but a link or the like: {member.name!r}")
    except DamagedTar as error:
        yield Reject(shard, None, "images", str(error))


def _left_out(name: str, shard: str, exclusion: Exclusion) -> str | None:
    """Why a member is left out; `tar` itself writes the folders `.` and `..` before names."""
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    reason = exclusion.of_whole_path("/".join(parts)) if parts else None
    return reason or exclusion.excludes("/".join([shard, *parts]))


def _what(member: TarMember) -> str:
    suffix = posixpath.splitext(member.name)[1].lower()
    return {".txt": "sentences", ".json": "documents"}.get(suffix, "images")


def _read_sample(
    descriptor: int, shard: str, stem: str, split: str, sample: list[TarMember], tally: Tally
) -> Iterator[Record]:
    """The records of the members with one key, `stem`. Each member is used, rejected as the second of its name, or left
    out for a reason that the `tally` counts."""
    key = f"{shard}/{stem}"
    members_by_suffix: dict[str, TarMember] = {}
    for member in sample:
        suffix = _divide(member.name)[1]
        if suffix in members_by_suffix:
            tally.add(None)
            yield Reject(shard, None, _what(member), f"duplicate: a second {suffix} of sample {stem!r}")
        else:
            members_by_suffix[suffix] = member
    images = [suffix for suffix in members_by_suffix if is_image(f"x{suffix}")]
    used = {
        "image": _choose(images, PHOTOGRAPHS),
        "text": _choose([suffix for suffix in members_by_suffix if suffix.endswith(".txt")], (".txt",)),
        "json": _choose([suffix for suffix in members_by_suffix if suffix.endswith(".json")], (".json",)),
    }
    if images and used["image"] is None:
        names = ", ".join(f"{stem}{suffix}" for suffix in images[:4])
        reason = f"several images have the key {stem!r}, which ends at the first dot ({names}): name one {stem}.jpg"
        yield Reject(shard, None, "images", f"ambiguous: {reason}")
    for suffix in members_by_suffix:
        ambiguous = used["image"] is None and suffix in images[:1]  # which is rejected for all
        tally.add(None if ambiguous or suffix in used.values() else _why_unused(suffix, suffix in images))
    parts = {part: members_by_suffix.get(suffix) for part, suffix in used.items()}
    if image := parts["image"]:
        yield ImageRecord(key, shard, split, shard, None, image.name, image.offset, image.size)
    if text := parts["text"]:
        yield from _read_text(descriptor, key, f"{shard}/{text.name}", text)
    if description := parts["json"]:
        yield from _read_json(descriptor, key, f"{shard}/{description.name}", description, None if text else tally)


def _choose(suffixes: list[str], plain: tuple[str, ...]) -> str | None:
    """The first of the `plain` suffixes that there is, else the only suffix."""
    first = next((suffix for suffix in plain if suffix in suffixes), None)
    return first or (suffixes[0] if len(suffixes) == 1 else None)


def _why_unused(suffix: str, image: bool) -> str:
    """Without what is the sample's own: `.mask_12.png` as `.mask_*.png`."""
    kind = DIGITS.sub("*", suffix)
    kind = kind if len(kind) <= LONGEST_SUFFIX else "others"
    if image:
        return f"further images of a sample of a shard, which has one photo ({kind})"
    return f"members of a shard that are not read ({kind or 'without a suffix'})"


def _read_text(descriptor: int, key: str, file: str, member: TarMember) -> Iterator[Record]:
    if member.size > LARGEST_TEXT:
        yield Reject(file, None, "sentences", f"too long: {member.size} bytes, more than {LARGEST_TEXT}")
        return
    text = lists.decode_text(_bytes(descriptor, member))
    if isinstance(text, bytes):
        yield Reject(file, None, "sentences", lists.not_utf8(text))
        return
    for number, line in enumerate(filter(None, LINE_END.split(text))):
        yield SentenceRecord(key, number, line, file)


def _read_json(descriptor: int, key: str, file: str, member: TarMember, tally: Tally | None) -> Iterator[Record]:
    """The records of a JSON member; its sentences only with a `tally`."""
    try:
        value = lists.parse_json(_bytes(descriptor, member) if member.size <= LARGEST_TEXT else "")
        if not isinstance(value, dict):
            raise ValueError("not an object")
    except ValueError as error:
        yield Reject(file, None, "documents", f"not JSON: {error}")
        return
    if tally is not None:
        captions = lists.sentences(value.get("caption"), tally)
        for number, text in enumerate(text for text in captions if text is not None):
            yield SentenceRecord(key, number, text, file)
    yield from lists.document(key, [value.get(name) for name in DOCUMENT], file)
    if own := {name: field for name, field in value.items() if name not in ("caption", *DOCUMENT)}:
        yield ColumnsRecord(key, own, file)


def _bytes(descriptor: int, member: TarMember) -> bytes:
    """The content of a text without its byte order mark."""
    return os.pread(descriptor, member.size, member.offset).removeprefix(codecs.BOM_UTF8)

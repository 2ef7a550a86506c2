"""Tar shards as webdataset and img2dataset write them, read in place. No member is unpacked.

Members of one key are one sample, wherever they are in the shard. The key is the path up to the first dot of the base
name, as in webdataset. A sample has an image, sentences (`.txt`, one per line, or else the `caption` in the `.json`),
weak text (`title`, `tags` and `description` in the `.json`), and own columns (the other keys of the `.json`).
"""

import codecs
import io
import math
import os
import posixpath
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pipeline.collections.files import IMAGE_SUFFIXES, CollectionFolder, Exclusion, is_image
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

SHARDS = "**/*.tar"
PHOTO_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", *sorted(IMAGE_SUFFIXES))
"""Suffixes of the photo of a sample, in the order of preference. The photo is the image with the first of these
suffixes that the sample has. If no image of the sample has one of these suffixes, as in `a.small.jpg`, the photo is the
only image of the sample."""
DIGITS = re.compile(r"\d+")
MAX_SUFFIX_CHARACTERS = 24
"""Largest number of characters of a suffix in the counts of ignored files. Longer suffixes are counted as `others`."""
MAX_SHOWN_IMAGES = 4
"""Largest number of images of an ambiguous sample in a message."""
LINE_END = re.compile(r"\r\n|\r|\n")
MAX_HEADER_BYTES = 1 << 16
"""Largest number of bytes of an extension header. A path has at most 4,096 bytes. A shard with a longer header is
damaged."""
MAX_HEADERS_BYTES = MAX_HEADER_BYTES * 8
"""Largest number of bytes of all headers before a member. GNU tar writes up to two headers, and pax one or two."""


class TarMember(NamedTuple):
    """A member of a tar: its `name`, the `offset` of its bytes in the tar, their number `size`, and its `kind`, which
    is `file`, `folder` or `other` (a link, a device, a file with holes)."""

    name: str
    offset: int
    size: int
    kind: str


class DamagedTar(InputError):
    """Error for a tar that cannot be read any further. Its message is the reason of a Reject."""


class _Headers(io.RawIOBase):
    """A file object with which tarfile reads only the headers in the tar with the open file `descriptor`.

    `read` raises DamagedTar if one header has more than MAX_HEADER_BYTES, or if all headers before a member together
    have more than MAX_HEADERS_BYTES, because tarfile has no limits. `since_member` is the number of bytes that were
    read since the last member. The reader of members sets it back to 0.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._position = 0
        self.since_member = 0

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        self._position = position
        return position

    def read(self, size: int = -1) -> bytes:
        self.since_member += size
        if not 0 <= size <= MAX_HEADER_BYTES or self.since_member > MAX_HEADERS_BYTES:
            raise DamagedTar(
                f"damaged: the headers at byte {self._position} are too many or too long for one member. Write the"
                " shard again"
            )
        data = os.pread(self._descriptor, size, self._position)
        self._position += len(data)
        return data


def members(descriptor: int) -> Iterator[TarMember]:
    """Yield all members of the tar in an open file, in the order of the file, also folders, links and devices.

    Raises DamagedTar if the file is not an uncompressed tar, is truncated, or lacks the block of zeros at its end, if a
    header cannot be read, or if the headers of a member are too long. Members before the damage are yielded first.
    """
    length = os.fstat(descriptor).st_size
    headers = _Headers(descriptor)
    at = 0
    try:
        with tarfile.TarFile(fileobj=headers, encoding="utf-8", errors="surrogateescape") as tar:
            while header := tar.next():
                headers.since_member = 0
                # tarfile keeps all members in this list. The list is emptied, so that memory does not grow with the
                # shard.
                tar.members = []  # pyright: ignore[reportAttributeAccessIssue]  # not in the types of tarfile
                # Links, folders and other known types that are not files have no data, although their header may
                # state a size.
                stored = header.isreg() or header.type not in tarfile.SUPPORTED_TYPES
                size = header.size if stored else 0
                if size < 0 or header.offset_data + size > length:
                    raise DamagedTar(
                        f"truncated: the shard ends within the member {header.name[:99]!r}. Copy the shard again"
                    )
                plain = header.isreg() and not header.issparse()
                kind = "file" if plain else "folder" if header.isdir() else "other"
                yield TarMember(header.name, header.offset_data, size, kind)
                at = tar.offset
            at = tar.offset
    except tarfile.TarError as error:
        if at:
            raise DamagedTar(
                f"damaged: the header at byte {at} cannot be read ({error}). Copy the shard again"
            ) from error
        start = ascii(os.pread(descriptor, 16, 0))[1:]
        raise DamagedTar(
            f"not an uncompressed tar shard: it begins with {start} ({error}). Write it as a tar without compression"
        ) from error
    if os.pread(descriptor, tarfile.BLOCKSIZE, at) != bytes(tarfile.BLOCKSIZE):
        raise DamagedTar(f"damaged: byte {at} begins neither a header nor the end of the shard. Copy the shard again")


def read(root: Path, options: Options) -> Iterator[Record]:
    """Yield the records of every shard.

    collection.files may name a pattern of shards for each split, or for `divided`. The shards of a pattern are in the
    order of their names. The default is `**/*.tar` for the default split. If a shard is damaged, a Reject is yielded
    for it, and the members before the damage are used. Raises UsageError if no file matches a pattern, or if
    collection.files has another key.
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
                    samples.setdefault(_split_member_name(member.name)[0], []).append(member)
            for key, sample in samples.items():
                yield from _read_sample(file.fileno(), shard, key, split, sample, tally)
    except (InputError, OSError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        reason = f"damaged: the shard cannot be read ({type(error).__name__}: {error})"
        yield Reject(shard, None, "images", str(error) if isinstance(error, InputError) else reason)


def _split_member_name(name: str) -> tuple[str, str]:
    """Return the key of a member, and its suffix in lower case, which begins at the first dot of its base name."""
    folder, slash, base = name.rpartition("/")
    key, dot, suffix = base.partition(".")
    return folder + slash + key, dot + suffix.lower()


def _members(descriptor: int, shard: str, exclusion: Exclusion, tally: Tally) -> Iterator[TarMember | Reject]:
    """Yield the files in a shard, a Reject for each link or device, and a Reject for damage, which ends reading.
    Folders are skipped, and ignored members are counted in the `tally`."""
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
                reason = f"not a plain file: {member.name!r} is a link or device. Store the file itself"
                yield Reject(shard, None, _what(member), reason)
    except DamagedTar as error:
        yield Reject(shard, None, "images", str(error))


def _left_out(name: str, shard: str, exclusion: Exclusion) -> str | None:
    """Return why a member is ignored, or None if it is not ignored. The folders `.` and `..`, which `tar` may write
    before the name of a member, do not make the member hidden."""
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    reason = exclusion.of_whole_path("/".join(parts)) if parts else None
    return reason or exclusion.excludes("/".join([shard, *parts]))


def _what(member: TarMember) -> str:
    suffix = posixpath.splitext(member.name)[1].lower()
    return {".txt": "sentences", ".json": "documents"}.get(suffix, "images")


def _read_sample(
    descriptor: int, shard: str, stem: str, split: str, sample: list[TarMember], tally: Tally
) -> Iterator[Record]:
    """Yield the records of the members with one key, `stem`.

    Each member is used, rejected because another member has the same suffix, or ignored for a reason that the `tally`
    counts. If the photo is ambiguous, one Reject is yielded for all images.
    """
    key = f"{shard}/{stem}"
    members_by_suffix: dict[str, TarMember] = {}
    for member in sample:
        suffix = _split_member_name(member.name)[1]
        if suffix in members_by_suffix:
            tally.add(None)
            yield Reject(shard, None, _what(member), f"duplicate: sample {stem!r} has a second member {suffix}")
        else:
            members_by_suffix[suffix] = member
    images = [suffix for suffix in members_by_suffix if is_image(f"x{suffix}")]
    used = {
        "image": _choose(images, PHOTO_SUFFIXES),
        "text": _choose([suffix for suffix in members_by_suffix if suffix.endswith(".txt")], (".txt",)),
        "json": _choose([suffix for suffix in members_by_suffix if suffix.endswith(".json")], (".json",)),
    }
    if images and used["image"] is None:
        names = ", ".join(f"{stem}{suffix}" for suffix in images[:MAX_SHOWN_IMAGES])
        reason = f"the images {names} all have the key {stem!r}, which ends at the first dot. Name one {stem}.jpg"
        yield Reject(shard, None, "images", f"ambiguous: {reason}")
    for suffix in members_by_suffix:
        ambiguous = used["image"] is None and suffix in images[:1]  # The Reject above stands for all images.
        tally.add(None if ambiguous or suffix in used.values() else _why_unused(suffix, suffix in images))
    parts = {part: members_by_suffix[suffix] if suffix else None for part, suffix in used.items()}
    if image := parts["image"]:
        yield ImageRecord(key, shard, split, shard, None, image.name, image.offset, image.size)
    if text := parts["text"]:
        yield from _read_text(descriptor, key, f"{shard}/{text.name}", text)
    if description := parts["json"]:
        yield from _read_json(descriptor, key, f"{shard}/{description.name}", description, None if text else tally)


def _choose(suffixes: list[str], plain: tuple[str, ...]) -> str | None:
    """Return the first of the `plain` suffixes among `suffixes`, or else the only suffix, or else None."""
    first = next((suffix for suffix in plain if suffix in suffixes), None)
    return first or (suffixes[0] if len(suffixes) == 1 else None)


def _why_unused(suffix: str, image: bool) -> str:
    """Return why a member with the `suffix`, which is an image if `image` is true, is ignored, with the kind of its
    suffix, such as `.mask_*.png` for `.mask_12.png`."""
    kind = DIGITS.sub("*", suffix)
    kind = kind if len(kind) <= MAX_SUFFIX_CHARACTERS else "others"
    if image:
        return f"further images of a sample of a shard, which has one photo ({kind})"
    return f"members of a shard that are not read ({kind or 'without a suffix'})"


def _read_text(descriptor: int, key: str, file: str, member: TarMember) -> Iterator[Record]:
    if member.size > lists.MAX_TEXT_BYTES:
        yield Reject(file, None, "sentences", _too_long(member))
        return
    text = lists.decode_text(_bytes(descriptor, member))
    if isinstance(text, bytes):
        yield Reject(file, None, "sentences", lists.not_utf8(text))
        return
    for number, line in enumerate(filter(None, LINE_END.split(text))):
        yield SentenceRecord(key, number, line, file)


def _read_json(descriptor: int, key: str, file: str, member: TarMember, tally: Tally | None) -> Iterator[Record]:
    """Yield the records of a JSON member: captions, weak text and own columns. Its `caption` is only read if a `tally`
    is given, which counts texts that are read as lists of captions."""
    if member.size > lists.MAX_TEXT_BYTES:
        yield Reject(file, None, "documents", _too_long(member))
        return
    try:
        value = lists.parse_json(_bytes(descriptor, member))
        if not isinstance(value, dict):
            raise ValueError('the file must have an object, such as {"caption": "A dog."}')
    except ValueError as error:
        yield Reject(file, None, "documents", f"not JSON: {error}")
        return
    if tally is not None:
        captions = lists.sentences(value.get("caption"), tally)
        for number, text in enumerate(text for text in captions if text is not None):
            yield SentenceRecord(key, number, text, file)
    yield from lists.document(key, value, lists.DOCUMENT, file)
    if own := {name: field for name, field in value.items() if name not in ("caption", *lists.DOCUMENT)}:
        yield ColumnsRecord(key, own, file)


def _too_long(member: TarMember) -> str:
    return f"too long: the text has {member.size} bytes, but only {lists.MAX_TEXT_BYTES} are allowed. Shorten it"


def _bytes(descriptor: int, member: TarMember) -> bytes:
    """Return the content of a member without a byte order mark."""
    return os.pread(descriptor, member.size, member.offset).removeprefix(codecs.BOM_UTF8)

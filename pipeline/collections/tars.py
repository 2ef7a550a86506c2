"""The members of a tar shard, found from header to header.

Python's tarfile trusts headers: it reads names of any length, follows chains of headers recursively, and can be sent
backwards forever. Here names and chains must be short, and a member must end inside the file.
"""

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.errors import InputError

BLOCK = tarfile.BLOCKSIZE
MOST_EXTENSIONS = 8  # extension headers before one member; GNU tar writes up to two, pax one or two
LARGEST_EXTENSION = 1 << 16  # bytes of an extension header; a path has at most 4,096
PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
EXTENSIONS = (*PAX, *NAMES, tarfile.XGLTYPE)


class TarMember(NamedTuple):
    """A member: its name, the offset and number of its bytes, and its kind: `file`, `folder`, or `other` (a link, a
    device, a file with holes)."""

    name: str
    offset: int
    size: int
    kind: str


class DamagedTar(InputError):
    """Why a tar cannot be read any further."""


@dataclass
class _Extension:
    """What extension headers say about the next member."""

    count: int = 0
    name: str | None = None
    size: int | None = None
    sparse: bool = False


def members(descriptor: int) -> Iterator[TarMember]:
    """The members of the tar in an open file, in order. Raises DamagedTar at an incomplete header."""
    length = os.fstat(descriptor).st_size
    at, extension = 0, _Extension()
    while (block := os.pread(descriptor, BLOCK, at)) != bytes(BLOCK):
        header, data = _header(block, at), at + BLOCK
        if header.type in EXTENSIONS:
            _extend(extension, header, descriptor, data)
            at = data + _padded(header.size)
            continue
        while header.type == tarfile.GNUTYPE_SPARSE and block[504 if data > at + BLOCK else 482]:
            block, data = os.pread(descriptor, BLOCK, data).ljust(BLOCK, b"\0"), data + BLOCK  # more of its holes
        member = _member(header, extension, data)
        if member.offset + member.size > length:
            raise DamagedTar(f"truncated: the shard ends inside of {member.name[:99]!r}")
        yield member
        at, extension = data + _padded(member.size), _Extension()
    if extension.count:
        raise DamagedTar(f"damaged: the shard ends at byte {at} where a member should begin")


def _header(block: bytes, at: int) -> tarfile.TarInfo:
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if header.size >= 0:
            return header
    except (tarfile.HeaderError, ValueError):
        pass
    if at == 0:
        raise DamagedTar(f"not an uncompressed tar shard: it starts with {block[:16].hex(' ') or 'nothing'}")
    raise DamagedTar(f"damaged: no header and no end of the shard at byte {at}")


def _extend(extension: _Extension, header: tarfile.TarInfo, descriptor: int, data: int) -> None:
    """Read the extension header whose content is at `data`. The first value of a field counts."""
    extension.count += 1
    if extension.count > MOST_EXTENSIONS or header.size > LARGEST_EXTENSION:
        raise DamagedTar(f"damaged: the headers before byte {data} are too many or too long for one member")
    content = os.pread(descriptor, header.size, data)
    if len(content) < header.size:
        raise DamagedTar("truncated: the shard ends inside of a header")
    if header.type == tarfile.GNUTYPE_LONGNAME and extension.name is None:
        extension.name = content.partition(b"\0")[0].decode("utf-8", "surrogateescape")
    elif header.type in PAX:
        records = _pax_records(content, data)
        if b"path" in records and extension.name is None:
            extension.name = records[b"path"].decode("utf-8", "surrogateescape")
        if b"size" in records and extension.size is None:
            extension.size = _number(records[b"size"], data)
        extension.sparse = extension.sparse or any(key.startswith(b"GNU.sparse.") for key in records)


def _pax_records(content: bytes, data: int) -> dict[bytes, bytes]:
    """Keyword -> value, from records `<length of the record> <keyword>=<value>\\n`."""
    records, at = {}, 0
    while at < len(content):
        spelt, _, _ = content[at : at + 20].partition(b" ")
        length = _number(spelt, data)
        keyword, equals, value = content[at + len(spelt) + 1 : at + length - 1].partition(b"=")
        if not equals or not len(spelt) < length <= len(content) - at:
            raise DamagedTar(f"damaged: no pax header at byte {data}")
        records[keyword] = value
        at += length
    return records


def _number(spelt: bytes, data: int) -> int:
    if not spelt.isdigit() or len(spelt) > 19:
        raise DamagedTar(f"damaged: no pax header at byte {data}")
    return int(spelt)


def _member(header: tarfile.TarInfo, extension: _Extension, data: int) -> TarMember:
    name = header.name if extension.name is None else extension.name
    stored = header.isreg() or header.type not in tarfile.SUPPORTED_TYPES  # else its size refers to other data
    size = (header.size if extension.size is None else extension.size) if stored else 0
    plain = header.isreg() and header.type != tarfile.GNUTYPE_SPARSE and not extension.sparse
    folder = header.isdir()
    return TarMember(
        name.rstrip("/") if folder else name, data, size, "file" if plain else "folder" if folder else "other"
    )


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK

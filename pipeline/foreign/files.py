"""Opens files of users and untrusted files: only regular files inside their folder, and texts with any line ends."""

import codecs
import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import InputError, Refused

OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags that keep a pipe from blocking, and a terminal from becoming ours."""
FILE_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device", stat.S_IFLNK: "a link",
}  # fmt: skip

MAX_LINE_BYTES = 1 << 24
"""Length of the longest line. A longer line is not text, and would be read into memory all at once."""
CHUNK_BYTES = 1 << 18
"""Number of bytes of a text that are read together."""
UTF16_MARKS = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE


class UnopenedFile(Refused):
    """A file that is not read. `reason` is one of missing, outside, unreadable and too-large. `detail` says more."""


def open_plain(root: str, path: str, most_bytes: float, follow_links: bool) -> int:
    """Open the regular file `path` under the folder `root`, of at most `most_bytes`, and return its descriptor.

    Unless `follow_links`, links may not lead out of that folder, except that a folder directly under it may be a link
    to another disk. Raises UnopenedFile. Never waits for pipes and devices.
    """
    if os.path.isabs(path) or ".." in path.split("/") or "\0" in path:
        raise UnopenedFile("outside", "its name leads out of the collection")
    try:
        descriptor = _open(root, path, follow_links)
    except FileNotFoundError:
        raise UnopenedFile("missing", f"there is no file {path}") from None
    except OSError as error:
        is_socket = error.errno == errno.ENXIO
        raise UnopenedFile("unreadable", "not a regular file" if is_socket else str(error.strerror)) from error
    try:
        _require_regular(os.fstat(descriptor), most_bytes)
    except UnopenedFile:
        os.close(descriptor)
        raise
    return descriptor


def _open(root: str, path: str, follow_links: bool) -> int:
    if follow_links:
        return os.open(os.path.join(root, path), OPEN_FLAGS)
    top, _, below = path.partition("/")
    base = os.path.realpath(os.path.join(root, top) if below else root)
    name = os.path.join(base, (below or path).lstrip("/"))
    if "/" not in below:
        try:
            return os.open(name, OPEN_FLAGS | os.O_NOFOLLOW)  # nearly every file is there and is no link
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
    resolved = os.path.realpath(name)
    if os.path.commonpath([base, resolved]) != base:
        raise UnopenedFile("outside", "a link leads out of the collection (collection.follow_links)")
    return os.open(resolved, OPEN_FLAGS)


def kind_of(mode: int) -> str | None:
    """Return the noun for a file of this mode, or None for a regular file."""
    return None if stat.S_ISREG(mode) else FILE_KINDS.get(stat.S_IFMT(mode), "something else")


def _require_regular(status: os.stat_result, most_bytes: float) -> None:
    if kind := kind_of(status.st_mode):
        raise UnopenedFile("unreadable", f"not a regular file but {kind}")
    if status.st_size > most_bytes:
        raise UnopenedFile("too-large", f"{status.st_size} bytes, more than {most_bytes:.0f}")


def each_line(file: BinaryIO, source: Path | str) -> Iterator[bytes]:
    """Yield the lines of the text `file`, which a person may have written, without their ends.

    CR, LF or CRLF ends a line, but U+2028 and form feeds do not. A byte order mark is not part of the first line.
    UTF-16 with such a mark, as Windows writes it, is converted to UTF-8. Raises InputError naming `source` for a line
    longer than MAX_LINE_BYTES and for damaged UTF-16.
    """
    chunks = iter(partial(file.read, CHUNK_BYTES), b"")
    first = next(chunks, b"")
    chunks = chain([first], chunks)
    if first.startswith(UTF16_MARKS):
        chunks = _from_utf16(chunks, source)
    rest, number = b"", 0
    for chunk in chain(chunks, [b""]):
        lines = (rest + chunk).splitlines(keepends=True)
        rest = lines.pop() if chunk and lines else b""  # perhaps without its end, or with the CR of a CRLF
        for line in lines:
            number += 1
            line = line.rstrip(b"\r\n")
            yield line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if len(rest) > MAX_LINE_BYTES:
            raise InputError(f"{source}: line {number + 1} has more than {MAX_LINE_BYTES} bytes; is it a text?")


def _from_utf16(chunks: Iterable[bytes], source: Path | str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-16")("surrogatepass")
    try:
        for chunk in chain(chunks, [b""]):
            if text := decoder.decode(chunk, final=not chunk):
                yield text.encode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise InputError(f"{source} is UTF-16 that is not whole; save it as UTF-8") from None


def decode_text(data: bytes, source: Path | str, first_line: int = 1) -> str:
    """Decode `data`, which begins at the line `first_line` of `source`, without a byte order mark. Raises InputError
    naming the line that is neither UTF-8 nor UTF-16 with such a mark."""
    try:
        return data.decode("utf-16" if first_line == 1 and data.startswith(UTF16_MARKS) else "utf-8-sig")
    except UnicodeDecodeError as error:
        number = first_line - 1 + len(data[: error.start + 1].splitlines())
        raise InputError(f"{source}: line {number} is not UTF-8; save the file as UTF-8") from None


def read_lines(path: Path, most_bytes: float = 1 << 30, from_pipe: bool = False) -> list[str]:
    """Read the lines of a text as `each_line` does. Raises InputError if it is not UTF-8 or, unless it may come
    `from_pipe`, not a regular file."""
    try:
        folder, name = os.path.split(path)
        with open(path if from_pipe else open_plain(folder, name, most_bytes, True), "rb") as file:
            return [decode_text(line, path, number) for number, line in enumerate(each_line(file, path), 1)]
    except (UnopenedFile, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}); put a text file there") from error


def read_weights(path: Path, sha256: str | None) -> tuple[bytes, str]:
    """Read a weights file, and return its bytes and their SHA-256. Raises InputError if that is not `sha256` (None: not
    known)."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read the weights {path} ({error.strerror}); put the file there or change weights_root or `file`"
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    if sha256 is not None and digest != sha256.lower():
        raise InputError(f"the sha256 of {path} is {digest}, not {sha256}; get the right file or correct `sha256`")
    return data, digest

"""The one place that opens artefacts for reading: regular files only, and every failure is a sentence.

A pipe would wait for a writer for ever, a device never end; both are refused without waiting.
"""

import errno
import hashlib
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import IntegrityError

HASH_BLOCK = 1 << 22
REMEDY = "run its stage again"
KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device", stat.S_IFLNK: "a link",
}  # fmt: skip
"""What may stand where a file should."""


def kind_of(mode: int) -> str | None:
    """What a file of this mode is, as a noun; None for a regular file."""
    return None if stat.S_ISREG(mode) else KINDS.get(stat.S_IFMT(mode), "no regular file")


def open_regular(path: Path) -> BinaryIO:
    """The file `path`, open for reading. Raises OSError, also for what is not a regular file."""
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 (the caller closes it)
    if (other := kind_of(os.fstat(file.fileno()).st_mode)) is not None:
        file.close()
        raise OSError(errno.EINVAL, f"it is {other}, not a file", str(path))
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


@contextmanager
def refusing(path: Path, remedy: str = REMEDY, missing: str | None = None) -> Iterator[None]:
    """Turn an OSError of reading `path` into an IntegrityError; `missing` is said of a file that is not there."""
    try:
        yield
    except OSError as error:
        raise IntegrityError(explain(path, error, remedy, missing)) from error


def explain(path: Path, error: OSError, remedy: str = REMEDY, missing: str | None = None) -> str:
    """The sentence for a file that cannot be read."""
    if error.errno == errno.ENOENT:
        return f"{path} {missing or 'does not exist; run the stage that makes it'}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"cannot read {path} (permission denied); allow this user to read it"
    if error.errno == errno.EISDIR:
        return f"cannot read {path} (it is a folder, not a file); move it away and {remedy}"
    if error.errno == errno.ENOTDIR:
        return f"cannot read {path} (a file stands where a folder of that path should); move it away and {remedy}"
    if error.errno == errno.ELOOP:
        return f"cannot read {path} (links lead in a circle); remove the link and {remedy}"
    return f"cannot read {path} ({error.strerror or error}); check it and its disk, then {remedy}"


def read_bytes(path: Path, remedy: str = REMEDY, missing: str | None = None) -> bytes:
    """All bytes of a file. Raises IntegrityError."""
    with refusing(path, remedy, missing), open_regular(path) as file:
        return file.read()


def map_file(path: Path) -> memoryview:
    """The bytes of a file that is never written to again. Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        empty = not os.fstat(file.fileno()).st_size  # of which there is no map
        return memoryview(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file. Raises OSError as `open_regular` does."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(HASH_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def is_there(path: Path) -> bool:
    """Whether something has the name `path`. Raises IntegrityError where a folder above it may not be read."""
    with refusing(path):
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def walk(folder: Path) -> Iterator[tuple[Path, os.stat_result | OSError]]:
    """Everything below `folder` that is no folder, in the order of names, each with its own status (a link's, not that
    of what it leads to); and what cannot be looked at, a folder or a file, with its error."""
    waiting = [Path(folder)]
    while waiting:
        parent, below = waiting.pop(), []
        try:
            entries = sorted(os.scandir(parent), key=lambda entry: entry.name)
        except OSError as error:
            yield parent, error
            continue
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError as error:
                yield Path(entry.path), error
                continue
            if stat.S_ISDIR(status.st_mode):
                below.append(Path(entry.path))
            else:
                yield Path(entry.path), status
        waiting += reversed(below)

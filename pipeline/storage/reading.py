"""The one place that opens artefacts for reading: regular files only, and every failure is a full sentence.

A pipe would wait for a writer forever, and a device never ends; both are refused without waiting.
"""

import errno
import hashlib
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import IntegrityError

REMEDY = "run its stage again by the command that `jointspace verify` prints for its run"
KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device", stat.S_IFLNK: "a link",
}  # fmt: skip
REASONS = {
    errno.EISDIR: "it is a folder, not a file); move it away and",
    errno.ENOTDIR: "a file stands where a folder of that path should be); move it away and",
    errno.ELOOP: "links lead in a circle); remove the link and",
}


def kind_of(mode: int) -> str | None:
    """What a file of this mode is, as a noun; None for a regular file."""
    return None if stat.S_ISREG(mode) else KINDS.get(stat.S_IFMT(mode), "not a regular file")


def open_regular(path: Path) -> BinaryIO:
    """The file `path`, open for reading. Raises OSError if it is not a regular file, too."""
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 (the caller closes it)
    if (other := kind_of(os.fstat(file.fileno()).st_mode)) is not None:
        file.close()
        raise OSError(errno.EINVAL, f"it is {other}, not a file", str(path))
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


@contextmanager
def refusing(path: Path, remedy: str = REMEDY, missing: str | None = None) -> Iterator[None]:
    """Turn an OSError from reading `path` into an IntegrityError; `missing` replaces the message for no such file."""
    try:
        yield
    except OSError as error:
        raise IntegrityError(explain(path, error, remedy, missing)) from error


def explain(path: Path, error: OSError, remedy: str = REMEDY, missing: str | None = None) -> str:
    if error.errno == errno.ENOENT:
        return f"{path} {missing or 'does not exist; run the stage that makes it'}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"cannot read {path} (permission denied); allow this user to read it"
    other = f"{error.strerror or error}); check it and its disk, then"
    return f"cannot read {path} ({REASONS.get(error.errno, other)} {remedy}"


def read_bytes(path: Path, remedy: str = REMEDY, missing: str | None = None) -> bytes:
    """All bytes of a file. Raises IntegrityError."""
    with refusing(path, remedy, missing), open_regular(path) as file:
        return file.read()


def map_file(path: Path) -> memoryview:
    """A memory map of a file that is never written again. Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return _map(file)


def map_hashed(path: Path) -> tuple[memoryview, str]:
    """The same with the SHA-256 of the file, which is read for it: what is read through a map stays in memory."""
    with open_regular(path) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return _map(file), sha256


def _map(file: BinaryIO) -> memoryview:
    empty = not os.fstat(file.fileno()).st_size  # cannot be mapped
    return memoryview(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file. Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_there(path: Path) -> bool:
    """Whether `path` exists. Raises IntegrityError if a folder above it is not readable."""
    with refusing(path):
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def walk(
    folder: Path, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[Path, os.stat_result | OSError]]:
    """Everything below `folder` except folders, ordered by name, with its own status (that of a link, not of its
    target), of regular files those with a `wanted` name; and what cannot be examined, with its error."""
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
                if not wanted(entry.name) and entry.is_file(follow_symlinks=False):
                    continue
                status = entry.stat(follow_symlinks=False)
            except OSError as error:
                yield Path(entry.path), error
                continue
            if stat.S_ISDIR(status.st_mode):
                below.append(Path(entry.path))
            else:
                yield Path(entry.path), status
        waiting += reversed(below)

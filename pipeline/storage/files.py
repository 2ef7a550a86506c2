"""Reading files: regular files only, by names that lead nowhere else, and every failure is a full sentence.

A pipe would wait for a writer forever, and a device never ends; both are refused without waiting. Names that stand in a
file, such as an index's card or a model's list of encoders, may be a stranger's: joined to a folder unchecked, they
could lead anywhere.
"""

import errno
import hashlib
import mmap
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from pipeline.errors import IntegrityError
from pipeline.foreign.files import is_remembered, kind_of, remember

REMEDY = "run its stage again by the command that `jointspace verify` prints for its run"
REASONS = {
    errno.EISDIR: "it is a folder, not a file); move it away and",
    errno.ENOTDIR: "a file is in the place of a folder); move it away and",
    errno.ELOOP: "links lead in a circle); remove the link and",
}
DRIVE = re.compile(r"[A-Za-z]:")
UNPLAIN = re.compile(r"[\\\0]|^(?:/|[A-Za-z]:|$)|(?:^|/)\.\.(?:/|$)", re.ASCII)
UNPLAIN_LINE = re.compile(UNPLAIN.pattern, re.ASCII | re.MULTILINE)
"""The same in any of several lines."""
NO_LINK = "put the file or folder itself there"
SHOWN = 120  # characters of a name that an error quotes
MIN_REMEMBERED_BYTES = 1 << 20
"""Size from which on it is remembered that a file was verified. Smaller files are hashed in less than a millisecond."""
SETTLED_SECONDS = 2.0
"""Age from which on a verified file is remembered. Some file systems count time in steps of two seconds."""


def open_regular(path: Path) -> BufferedReader:
    """Open the file `path` for reading. Raises OSError also if it is not a regular file."""
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
    """Describe an `error` from reading `path` in a sentence."""
    if error.errno == errno.ENOENT:
        return f"{path} {missing or 'does not exist; run the stage that makes it'}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"cannot read {path} (permission denied); allow this user to read it"
    other = f"{error.strerror or error}); check it and its disk, then"
    return f"cannot read {path} ({REASONS.get(error.errno or 0, other)} {remedy}"


def read_bytes(path: Path) -> bytes:
    """Read all bytes of a file. Raises IntegrityError."""
    with refusing(path), open_regular(path) as file:
        return file.read()


def map_hashed(path: Path) -> tuple[memoryview, str]:
    """A memory map of a file that is never written again, and its SHA-256. Raises OSError as `open_regular` does.

    The file is read for the hash, since what is read through a map stays in memory.
    """
    with open_regular(path) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        empty = not os.fstat(file.fileno()).st_size  # cannot be mapped
        return memoryview(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), sha256


def map_verified(path: Path, sha256: str) -> tuple[memoryview, str]:
    """Map a file as `map_hashed` does, but do not hash a large file again that had the hash `sha256` before.

    Such a file is recognised by its path, device, inode, size, and times of modification and of status change. The
    kernel sets the last of these whenever the content or the other times are set, and no program can choose it.
    """
    with open_regular(path) as file:
        before = os.fstat(file.fileno())
    key = _verification_key(path, before, sha256)
    is_large = before.st_size >= MIN_REMEMBERED_BYTES
    if is_large and is_remembered(key):
        with open_regular(path) as file:
            if _verification_key(path, os.fstat(file.fileno()), sha256) == key:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), sha256
    data, found = map_hashed(path)
    # A file that has just been written could be written once more within the same tick of the clock.
    is_settled = time.time() - max(before.st_mtime, before.st_ctime) > SETTLED_SECONDS
    if is_large and is_settled and found == sha256 and _verification_key(path, os.stat(path), sha256) == key:
        remember(key)
    return data, found


def _verification_key(path: Path, status: os.stat_result, sha256: str) -> str:
    """Return a digest of the name, the status and the expected hash of a file."""
    facts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, sha256)
    return hashlib.sha256("\0".join(map(str, ("verified", os.path.realpath(path), *facts))).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file. Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_regular(path: Path) -> bool:
    """Whether `path` is itself a regular file: not a link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def walk(folder: Path) -> Iterator[tuple[Path, os.stat_result | OSError]]:
    """Everything below `folder` except folders, ordered by name, with its own status (that of a link, not of its
    target); and what cannot be examined, with its error."""
    unread: list[OSError] = []
    for parent, folders, names in os.walk(folder, onerror=unread.append):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for path in (Path(parent, name) for name in sorted(names + links)):
            try:
                yield path, path.lstat()
            except OSError as error:
                yield path, error
    yield from ((Path(error.filename), error) for error in unread)


def require_no_links(top: Path, folder: Path) -> None:
    """Raise IntegrityError naming a link in `folder`, however deep, or between it and the folder `top`.

    What is in an index of a stranger could otherwise be a link to a file of this user's, which is then copied, or to a
    folder, which is then changed. `top` itself, which the user has named, may be a link.
    """
    link = next((part for part in (folder, *folder.parents) if top in part.parents and part.is_symlink()), None)
    link = link or next((os.path.join(*found) for found in _links_in(folder)), None)
    if link is not None:
        raise IntegrityError(f"{link} is a link, and nothing in an index may be one; {NO_LINK}")


def _links_in(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the links in `folder`, however deep, as folder and name."""
    for parent, folders, names in os.walk(folder):
        yield from ((parent, name) for name in (*names, *folders) if os.path.islink(os.path.join(parent, name)))


def plain(name: object, source: Path | str) -> str:
    """`name`, read from the file `source`, if it is relative, with forward slashes and plain parts.

    Raises IntegrityError for an absolute path, `..`, a drive, a backslash, NUL, or a value that is not a string.
    """
    usable = isinstance(name, str) and not {"\\", "\0"} & set(name) and not DRIVE.match(name)
    if not isinstance(name, str) or not usable or any(part in ("", ".", "..") for part in name.split("/")):
        raise IntegrityError(f"{source} names {repr(name)[:SHOWN]}, which is not a plain name; get the file again")
    return name


def name_fault(name: str, listed: bool = False) -> str | None:
    """Say why no index may hold `name`, the relative path of a photo or a member of a shard; None if an index may.

    A `listed` name comes from a list and may have backslashes and a drive: the file can have another name.
    """
    if not UNPLAIN.search(name):
        return None
    if not name or "\0" in name:
        return f"no file name: {name!r}"
    if name.startswith("/") or ".." in name.split("/"):
        return f"outside: {name!r} leads out of the collection; use names relative to it"
    if listed:
        return None
    odd = "has a backslash" if "\\" in name else "begins with a letter and a colon, as a drive of Windows does"
    return f"unusable name: {name!r} {odd}; rename the file"


def first_unplain(names: Sequence[str | None]) -> int | None:
    """Find the first of `names` that `name_fault` refuses and return its position, or None if there is none."""
    # One search in all names takes a tenth of the time. A name with a line break may be found in error.
    if not UNPLAIN_LINE.search("\n".join(name for name in names if name is not None)):
        return None
    return next((place for place, name in enumerate(names) if name is not None and name_fault(name)), None)


def inside(folder: Path, name: object, source: Path | str) -> Path:
    """The path of the file `name` below `folder`, as the file `source` names it; it need not exist.

    Raises IntegrityError as `plain` does, and for a path that contains a link or leads out of `folder`.
    """
    folder = Path(folder)
    path = folder.joinpath(plain(name, source))
    below = [path, *path.parents][: len(path.parts) - len(folder.parts)]
    try:
        link = next((part for part in below if part.is_symlink()), None)
        within = path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # an impossible name, or a circle of links
        link, within = None, False
    if link is not None:
        raise IntegrityError(f"{source} names {repr(name)[:SHOWN]}, but {link} is a link; put the file itself there")
    if not within:
        raise IntegrityError(f"{source} names {repr(name)[:SHOWN]}, which cannot be in {folder}; get the file again")
    return path

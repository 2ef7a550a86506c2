"""Safe reading of files: only regular files are opened, and file names from untrusted files are checked.

Reading a pipe could wait forever for its writer, and a device may never end. Pipes and devices are therefore refused
without waiting. A file name inside another file, such as the card of an index, may come from an untrusted source.
Without a check, such a name could lead out of the folder to which it is joined.
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

REMEDY = "Run `jointspace verify RUN`, which prints the command that makes the file again."
"""The remedy for a damaged file of a run, in messages."""
REBUILD = "Copy the index again, or rebuild it with the command that `jointspace verify RUN` prints for its run."
"""The remedy for a damaged file of an index, in messages."""
RUN_FIRST = "Run the stage that makes it, or `jointspace run CONFIG`, which runs all missing stages."
"""The remedy for a missing file of a run, in messages."""
REASONS = {
    errno.EISDIR: "it is a folder, not a file). Move it away.",
    errno.ENOTDIR: "a file is where a folder should be). Move that file away.",
    errno.ELOOP: "its symbolic links form a circle). Remove the link.",
}
"""Error number -> the end of a message that begins with `jointspace cannot read PATH (`. It has the reason of the error
and what the user should do first."""
DRIVE = re.compile(r"[A-Za-z]:")
"""Pattern of a drive of Windows, such as `C:`, at the beginning of a name."""
UNPLAIN = re.compile(r"[\\\0]|^(?:/|[A-Za-z]:|$)|(?:^|/)\.\.(?:/|$)", re.ASCII)
"""Pattern of the names by which an index must not refer to a photo. `UNPLAIN.search(name)` finds the pattern in an
empty or absolute name, and in a name with a backslash, a character of value 0, the part `..`, or a drive of Windows at
its beginning. It finds nothing in any other name."""
UNPLAIN_LINE = re.compile(UNPLAIN.pattern, re.ASCII | re.MULTILINE)
"""Pattern with which one search examines many names that are joined by line breaks. If the search finds nothing,
UNPLAIN refuses none of the names. If it finds something, UNPLAIN may still accept all names, because a name may contain
a line break."""
GET_AGAIN = "Copy the file that contains this name again from its source."
NO_LINK = "Replace the link by the file or folder itself."
MAX_NAME_CHARACTERS = 120
"""Largest number of characters of a name that an error quotes. The rest of a longer name is cut off."""
MIN_REMEMBERED_BYTES = 1 << 20
"""Smallest size in bytes of a file for which `map_verified` remembers that the file was verified. Smaller files are
always hashed, which takes less than a millisecond."""
SETTLED_SECONDS = 2.0
"""Seconds that must have passed since the last change of a file before `map_verified` remembers that the file was
verified. Some file systems count time in steps of two seconds."""


def open_regular(path: Path) -> BufferedReader:
    """Open the file `path` for reading. The caller must close it. Raises OSError if the file cannot be read, or if
    `path` is not a regular file."""
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 (the caller closes it)
    if (other := kind_of(os.fstat(file.fileno()).st_mode)) is not None:
        file.close()
        raise OSError(errno.EINVAL, f"it is {other}, not a file", str(path))
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


@contextmanager
def refusing(path: Path, remedy: str = REMEDY, missing: str | None = None) -> Iterator[None]:
    """Turn an OSError in the block, which reads the file `path`, into an IntegrityError.

    The message is the result of `explain`, to which `remedy` and `missing` are passed.
    """
    try:
        yield
    except OSError as error:
        raise IntegrityError(explain(path, error, remedy, missing)) from error


def explain(path: Path, error: OSError, remedy: str = REMEDY, missing: str | None = None) -> str:
    """Describe an `error` from reading `path` in sentences that end with the `remedy`.

    Two errors have another remedy. If the file does not exist, the message is `path` and the text `missing`. If
    `missing` is None, the message says that the file does not exist, and ends with RUN_FIRST. If this user may not read
    the file, the message asks for the permission.
    """
    if error.errno == errno.ENOENT:
        return f"{path} {missing or f'does not exist. {RUN_FIRST}'}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"jointspace cannot read {path} (permission denied). Allow this user to read it."
    other = f"{error.strerror or error}). Check the file and its disk."
    return f"jointspace cannot read {path} ({REASONS.get(error.errno or 0, other)} {remedy}"


def read_bytes(path: Path) -> bytes:
    """Read all bytes of a file. Raises IntegrityError if that fails."""
    with refusing(path), open_regular(path) as file:
        return file.read()


def map_hashed(path: Path) -> tuple[memoryview, str]:
    """Return a memory map of a file, and the SHA-256 of the file. The file may be replaced later, but not overwritten.

    The hash is computed by reading the file, because pages that are read through a map stay in memory. Raises OSError
    if the file cannot be read or is not a regular file.
    """
    with open_regular(path) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        empty = not os.fstat(file.fileno()).st_size  # An empty file cannot be mapped.
        return memoryview(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), sha256


def map_verified(path: Path, sha256: str) -> tuple[memoryview, str]:
    """Return a memory map of a file, and the SHA-256 of the file. A large file that had the hash `sha256` when it was
    hashed before is not hashed again.

    Such a file is recognised by its path, device, inode, size, and times of modification and of status change. The
    kernel sets the time of status change whenever the content or another time changes, and no program can choose it. If
    the file was changed, the returned hash differs from `sha256`, so the caller must compare the two. Raises OSError if
    the file cannot be read or is not a regular file.
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
    # A file that has just been written could be written once more within the same tick of the clock, and its times
    # would not change. Such a file is therefore not remembered yet.
    is_settled = time.time() - max(before.st_mtime, before.st_ctime) > SETTLED_SECONDS
    if is_large and is_settled and found == sha256 and _verification_key(path, os.stat(path), sha256) == key:
        remember(key)
    return data, found


def _verification_key(path: Path, status: os.stat_result, sha256: str) -> str:
    """Return a digest of the path, the status and the expected hash of a file. Under this digest, `map_verified`
    remembers that the file was verified."""
    facts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, sha256)
    return hashlib.sha256("\0".join(map(str, ("verified", os.path.realpath(path), *facts))).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits.

    Raises OSError if the file cannot be read or is not a regular file.
    """
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_regular(path: Path) -> bool:
    """Return whether `path` is a regular file. A link to a regular file does not count."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def walk(folder: Path) -> Iterator[tuple[Path, os.stat_result | OSError]]:
    """Yield all files and links below `folder`, sorted by name within each folder, with their status.

    The status of a link describes the link and not its target, and links to folders are not followed. If a file cannot
    be examined, the OSError is yielded in place of the status. Folders that cannot be listed are yielded last, also
    with the OSError.
    """
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
    """Raise IntegrityError if `folder`, a file or folder below it, or a folder between `top` and `folder` is a link.

    An index from an untrusted source could contain a link to a private file of this user, and the file would be copied.
    With a link to a folder, the content of this folder would be changed. `top` itself may be a link, because the user
    has named it.
    """
    link = next((part for part in (folder, *folder.parents) if top in part.parents and part.is_symlink()), None)
    link = link or next((os.path.join(*found) for found in _links_in(folder)), None)
    if link is not None:
        raise IntegrityError(f"{link} is a link, but an index must not contain links. {NO_LINK}")


def _links_in(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the folder and the name of each link in `folder` and its subfolders."""
    for parent, folders, names in os.walk(folder):
        yield from ((parent, name) for name in (*names, *folders) if os.path.islink(os.path.join(parent, name)))


def plain(name: object, source: Path | str) -> str:
    """Check a file name that was read from the file `source`, and return it.

    Raises IntegrityError if the name is not a string, is absolute, has a drive, an empty part, `.` or `..`, or
    contains a backslash or NUL.
    """
    usable = isinstance(name, str) and not {"\\", "\0"} & set(name) and not DRIVE.match(name)
    if not isinstance(name, str) or not usable or any(part in ("", ".", "..") for part in name.split("/")):
        quoted = repr(name)[:MAX_NAME_CHARACTERS]
        raise IntegrityError(f"{source} names the file {quoted}, which is not a plain relative name. {GET_AGAIN}")
    return name


def name_fault(name: str, listed: bool = False) -> str | None:
    """Return the reason why an index must not contain `name`, or None if an index may contain it.

    `name` is the relative path of a photo, or of a member of a tar shard. The result consists of a few words that name
    the fault, a colon, and sentences without the last full stop. `listed` says whether the name comes from a list of
    the user. Such a name may have backslashes and a drive of Windows, because the photo can have another name.
    """
    if not UNPLAIN.search(name):
        return None
    if not name or "\0" in name:
        return f"not a file name: {name!r} is empty or contains a character of value 0"
    if name.startswith("/") or ".." in name.split("/"):
        return f"outside: {name!r} leads out of the collection. Use names that are relative to it"
    if listed:
        return None
    odd = "has a backslash" if "\\" in name else "begins with a letter and a colon, as a drive of Windows does"
    return f"unusable name: {name!r} {odd}. Rename the file"


def first_unplain(names: Sequence[str | None]) -> int | None:
    """Return the position of the first name that `name_fault` refuses, or None if there is no such name.

    A name may be None, which counts as a permitted name.
    """
    # One search in all names takes a tenth of the time. This search can also match a line of a name that `name_fault`
    # accepts.
    if not UNPLAIN_LINE.search("\n".join(name for name in names if name is not None)):
        return None
    return next((position for position, name in enumerate(names) if name is not None and name_fault(name)), None)


def inside(folder: Path, name: object, source: Path | str) -> Path:
    """Return the path of the file `name` below `folder`. The file need not exist.

    The name was read from the file `source`. Raises IntegrityError if the name is not a plain relative name (see
    `plain`), and for a path that contains a link or leads out of `folder`.
    """
    folder = Path(folder)
    path = folder.joinpath(plain(name, source))
    below = [path, *path.parents][: len(path.parts) - len(folder.parts)]
    try:
        link = next((part for part in below if part.is_symlink()), None)
        within = path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # The name is impossible, or links form a circle.
        link = None
        within = False
    quoted = repr(name)[:MAX_NAME_CHARACTERS]
    if link is not None:
        raise IntegrityError(f"{source} names the file {quoted}, but {link} is a link. {NO_LINK}")
    if not within:
        raise IntegrityError(f"{source} names the file {quoted}, which cannot be in {folder}. {GET_AGAIN}")
    return path

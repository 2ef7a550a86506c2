"""Opens files of users and untrusted files: only regular files inside their folder, and texts with any line endings.

If the library for a format may crash on malformed files, a file is first read for trial, in another process with a
memory limit. The digest of a file that has passed its trial can be remembered, so that no further trial is needed. The
remembered digests are the names of empty files in a folder that only this user can write.
"""

import atexit
import codecs
import errno
import hashlib
import multiprocessing
import os
import resource
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO, ParamSpec

from pipeline.compute.workers import DIED, KILLED, Failure, Worker, private_folder
from pipeline.errors import InputError, JointspaceError, Refused

OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags with which opening a pipe does not block, and a terminal does not become the controlling terminal."""
FILE_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device", stat.S_IFLNK: "a link",
}  # fmt: skip

MAX_LINE_BYTES = 1 << 24
"""Largest number of bytes in a line. A longer line is an error, because it is probably not text, and would be read into
memory at once."""
MAX_LIST_BYTES = 1 << 30
"""Largest number of bytes of a text file whose lines are all in memory. A larger file is an error."""
CHUNK_BYTES = 1 << 18
"""Number of bytes of a text that are read at once."""
UTF16_MARKS = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE


class UnopenedFile(Refused):
    """Error for a file that is not read. `reason` is missing, outside, unreadable or too-large."""


def open_plain(root: str, path: str, most_bytes: float, follow_links: bool) -> int:
    """Open the regular file `path` under the folder `root`, and return its file descriptor.

    The file may have at most `most_bytes` bytes. If `follow_links` is false, symbolic links in `path` are limited: the
    file must be below the folder directly under `root` with which `path` begins, or below `root` if `path` has no
    folder. Only this first folder may be a link that leads out of `root`, such as a link to another disk. The function
    never waits for pipes or devices. Raises UnopenedFile if the file cannot or must not be read.
    """
    if os.path.isabs(path) or ".." in path.split("/") or "\0" in path:
        raise UnopenedFile("outside", f"{path!r} leads out of the collection. Use names that are relative to it")
    try:
        descriptor = _open(root, path, follow_links)
    except FileNotFoundError:
        raise UnopenedFile("missing", f"there is no file {path}") from None
    except OSError as error:
        is_socket = error.errno == errno.ENXIO
        raise UnopenedFile(
            "unreadable", "it is a socket, but must be a regular file" if is_socket else str(error.strerror)
        ) from error
    status = os.fstat(descriptor)
    fault = None
    if kind := kind_of(status.st_mode):
        fault = UnopenedFile("unreadable", f"it is {kind}, but must be a regular file")
    elif status.st_size > most_bytes:
        fault = UnopenedFile("too-large", f"the file has {status.st_size} bytes, but only {most_bytes:.0f} are allowed")
    if fault:
        os.close(descriptor)
        raise fault
    return descriptor


def _open(root: str, path: str, follow_links: bool) -> int:
    if follow_links:
        return os.open(os.path.join(root, path), OPEN_FLAGS)
    top, _, below = path.partition("/")
    base = os.path.realpath(os.path.join(root, top) if below else root)
    name = os.path.join(base, (below or path).lstrip("/"))
    if "/" not in below:
        try:
            # Nearly every file is opened here. Only a link (ELOOP) needs the check below.
            return os.open(name, OPEN_FLAGS | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
    resolved = os.path.realpath(name)
    if os.path.commonpath([base, resolved]) != base:
        limit = f"the folder {top}" if below else "the collection"
        raise UnopenedFile(
            "outside", f"a link leads out of {limit}. Set collection.follow_links to true if you trust it"
        )
    return os.open(resolved, OPEN_FLAGS)


def kind_of(mode: int) -> str | None:
    """Return the noun for a file of this mode, or None for a regular file."""
    return None if stat.S_ISREG(mode) else FILE_KINDS.get(stat.S_IFMT(mode), "something else")


def each_line(file: BinaryIO, source: Path | str) -> Iterator[bytes]:
    """Yield the lines of a text file without their line endings.

    CR, LF or CRLF ends a line, but U+2028 and form feeds do not. A byte order mark is removed from the first line.
    UTF-16 with a byte order mark, as Windows writes it, is converted to UTF-8. Raises InputError, with the name
    `source`, for a line longer than MAX_LINE_BYTES and for damaged UTF-16.
    """
    chunks = iter(partial(file.read, CHUNK_BYTES), b"")
    first = next(chunks, b"")
    chunks = chain([first], chunks)
    if first.startswith(UTF16_MARKS):
        chunks = _from_utf16(chunks, source)
    rest = b""
    number = 0
    for chunk in chain(chunks, [b""]):
        lines = (rest + chunk).splitlines(keepends=True)
        # The last line of a chunk may be incomplete, or end between CR and LF.
        rest = lines.pop() if chunk and lines else b""
        for line in lines:
            number += 1
            line = line.rstrip(b"\r\n")
            yield line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if len(rest) > MAX_LINE_BYTES:
            raise InputError(
                f"{source}: line {number + 1} has more than {MAX_LINE_BYTES} bytes. Use a text file with shorter lines."
            )


def _from_utf16(chunks: Iterable[bytes], source: Path | str) -> Iterator[bytes]:
    try:
        for text in codecs.iterdecode(chunks, "utf-16", "surrogatepass"):
            yield text.encode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise InputError(f"{source} is damaged or truncated UTF-16. Save the file as UTF-8.") from None


def decode_text(data: bytes, source: Path | str, first_line: int = 1) -> str:
    """Decode text that begins at the line `first_line` of the file `source`. A byte order mark is removed.

    Raises InputError, with the line, if the text is neither UTF-8 nor UTF-16 with a byte order mark.
    """
    try:
        return data.decode("utf-16" if first_line == 1 and data.startswith(UTF16_MARKS) else "utf-8-sig")
    except UnicodeDecodeError as error:
        number = first_line - 1 + len(data[: error.start + 1].splitlines())
        raise InputError(f"{source}: line {number} is not UTF-8. Save the file as UTF-8.") from None


def read_lines(path: Path, from_pipe: bool = False) -> list[str]:
    """Read all lines of a text file, by the rules of `each_line`.

    If `from_pipe` is true, the file may also be a pipe. Raises InputError if the file cannot be read, has more than
    MAX_LIST_BYTES bytes, or is not UTF-8.
    """
    try:
        folder, name = os.path.split(path)
        with open(path if from_pipe else open_plain(folder, name, MAX_LIST_BYTES, True), "rb") as file:
            return [decode_text(line, path, number) for number, line in enumerate(each_line(file, path), 1)]
    except (UnopenedFile, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}). Put a text file at this path.") from error


def read_weights(path: Path, sha256: str | None) -> tuple[bytes, str]:
    """Read a weights file. Return its content and its SHA-256 in hexadecimal digits.

    Raises InputError if the file cannot be read, or if `sha256` is given and is not its SHA-256.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"The weights {path} cannot be read ({error.strerror}). Put the file there, or change weights_root or"
            " `file`."
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    if sha256 is not None and digest != sha256.lower():
        raise InputError(
            f"The sha256 of {path} is {digest}, not {sha256}. Download the right file, or correct `sha256`."
        )
    return data, digest


MAX_TRIAL_BYTES = 1 << 32
"""Bytes of memory that a trial may use beyond the size of its file. A file that needs more is refused. For some types
of index, FAISS copies most of the file."""

Arguments = ParamSpec("Arguments")


@dataclass(frozen=True)
class Trial:
    """A trial of the file `path`: `read()` is called in the worker process, with at most `most_bytes` bytes of memory,
    and with `folder` as the working directory."""

    path: Path
    read: Callable[[], object]
    folder: str
    most_bytes: int


def try_first(
    path: Path, read: Callable[Arguments, object], *arguments: Arguments.args, **named: Arguments.kwargs
) -> None:
    """Read a file for trial in a separate process, which may crash, by calling `read(*arguments, **named)` there.

    The function and its arguments must be picklable, and its result is discarded. The process is kept for the next
    trial. Raises InputError, with the reason, if the trial fails, or if this process is daemonic, and can therefore not
    start another process.
    """
    if multiprocessing.current_process().daemon:
        raise InputError(
            f"{path} must be read for trial in a separate process before it is used, and a daemonic process, such as a"
            " worker of multiprocessing.Pool, cannot start this process. Open the file once in your main process, so"
            " that jointspace remembers the trial. If your home directory cannot be written, first set XDG_STATE_HOME"
            " to a folder that can be written."
        )
    most_bytes = MAX_TRIAL_BYTES + (path.stat().st_size if path.is_file() else 0)
    trial = Trial(path, partial(read, *arguments, **named), os.getcwd(), most_bytes)
    outcome = _worker(os.getpid())(trial)
    if isinstance(outcome, Failure):
        died = (
            f"{path} crashed the process that read it for trial, so it is damaged or cannot be trusted. Get it again."
        )
        raise InputError(died if outcome.reason in (DIED, KILLED) else outcome.reason)


@cache
def _worker(process: int) -> Worker[Trial, None]:
    """Return the worker process for the trials of this process, whose id is `process`.

    The first trial starts the worker, which is kept for later calls and ends with this process. A fork of this process
    has another id, so the fork gets its own worker.
    """
    worker = Worker(_read_for_trial)
    atexit.register(worker.close)
    return worker


def _read_for_trial(trial: Trial) -> None:
    """Run a trial in the worker process. Raises InputError if its file cannot be read, or needs too much memory. An
    error of jointspace that `read` raises is not converted."""
    os.chdir(trial.folder)  # The caller may have changed the working directory since this process was started.
    resource.setrlimit(resource.RLIMIT_DATA, (trial.most_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    try:
        trial.read()
    except JointspaceError:
        raise
    except MemoryError:
        limit = f"{trial.most_bytes / 2**30:.2g} GB"
        raise InputError(
            f"{trial.path} needs more than {limit} of memory to be read, so the file is damaged or cannot be trusted."
            " Write or download the file again."
        ) from None
    except Exception as error:
        raise InputError(
            f"jointspace cannot read {trial.path} ({error!r}). Write or download the file again."
        ) from error


def is_remembered(digest: str) -> bool:
    """Return whether `remember` has recorded that a file with this hexadecimal digest has passed its trial."""
    return (folder := state_folder("tried")) is not None and os.path.isfile(folder / digest)


def remember(digest: str) -> None:
    """Remember the hexadecimal digest of a file that has passed its trial.

    If the folder cannot be written, nothing happens, and the trial is repeated when the file is read again.
    """
    if folder := state_folder("tried"):
        with suppress(OSError):
            (folder / digest).touch()


def state_folder(name: str) -> Path | None:
    """Return the folder `name` below $XDG_STATE_HOME/jointspace, which is made if it does not exist.

    Return None if the folder cannot be made, or if other users can write it.
    """
    with suppress(OSError, RuntimeError, JointspaceError):  # RuntimeError if the user has no home directory
        home = Path(os.environ.get("XDG_STATE_HOME", ""))
        home = home if home.is_absolute() else Path.home() / ".local/state"
        folder = private_folder(home / "jointspace" / name, "")
        return None if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH) else folder
    return None

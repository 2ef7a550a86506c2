"""Publishes several files together, so that readers never see a mixture of old and new files.

Each file is written under a temporary name in its own folder and synced. Only when all of them are there does
`os.replace` give each its name, so a full disk is noticed before any older file is touched. Plain Python file objects
do the writing: the writers of numpy, faiss and HDF5 can report success on a full disk.

A temporary name, `.<name>.tmp.<machine>-<process>`, says who writes the file: several machines may share a disk.
"""

import errno
import glob
import hashlib
import os
import re
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypedDict

from pipeline.errors import JointspaceError, UsageError
from pipeline.storage.files import is_regular

OCCUPIED = (errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EEXIST)
"""Errors that more disk space does not cure."""
TEMPORARY = re.compile(r"\.(?P<name>.+)\.tmp\.((?P<machine>[0-9a-f]{8})-)?(?P<pid>[1-9]\d*)", re.DOTALL)
"""Temporary names. Earlier versions did not write the machine."""
ABANDONED_SECONDS = 30 * 24 * 3600
"""Age at which the temporary file of another machine counts as left by a dead process."""


class FileSum(TypedDict):
    """The size and the sha256 of a file."""

    bytes: int
    sha256: str


class FileBatch:
    """`add` every file, then `publish`. Until then, older files of these names stay whole."""

    def __init__(self) -> None:
        self._written: dict[Path, Path] = {}
        self._commits: list[Path] = []
        self._orphans: dict[Path, dict[str, list[Path]]] = {}  # by folder and name, found when it is first written to

    def add(self, path: Path, data: bytes | memoryview | Iterator[bytes], commit: bool = False) -> FileSum:
        """Write `data`, in parts if it is an iterator, under a temporary name beside `path`. Return the `bytes` and
        `sha256` of the file for its commit.

        A `commit` vouches for files that were added before it. Raises JointspaceError if `data` cannot be written, and
        then removes everything in the batch.
        """
        path = Path(path)
        temporary = self._written[path] = _temporary(path)
        parts = data if isinstance(data, Iterator) else iter([memoryview(data).cast("B")])
        digest = hashlib.sha256()
        size = 0
        with self.discarded_on_error():
            self._sweep(path)
            try:
                with open(temporary, "wb", opener=open_no_link) as file:
                    for part in parts:
                        size += len(part)
                        digest.update(part)
                        file.write(part)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise cannot_write(path, size, error) from error
        if commit:
            self._commits.append(path)
        return {"bytes": size, "sha256": digest.hexdigest()}

    def link(self, path: Path, source: Path) -> None:
        """Add another name of the file `source`. Raises OSError where the file system has no such links."""
        self._sweep(path)
        os.link(source, _temporary(path))
        self._written[path] = _temporary(path)

    def _sweep(self, path: Path) -> None:
        """Make the folder of `path`, and remove the orphans (see `is_orphan`) of that file."""
        try:
            if path.parent not in self._orphans:
                path.parent.mkdir(parents=True, exist_ok=True)
                orphans = self._orphans[path.parent] = {}
                for orphan in filter(is_orphan, path.parent.glob(".*.tmp.*")):
                    if match := TEMPORARY.fullmatch(orphan.name):
                        orphans.setdefault(match["name"], []).append(orphan)
            # A killed process of this number may have left a link to another file, which must not be overwritten.
            for orphan in (*self._orphans[path.parent].pop(path.name, ()), *filter(is_regular, [_temporary(path)])):
                orphan.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(path, 0, error) from error

    def publish(self) -> None:
        """Give all files their names.

        The older commits are removed first, the last one at once, and then the files are renamed in the order in which
        they were added. If the process is killed on the way, or a rename fails, some files are new and others old or
        missing. Readers never see a mixture all the same, because every commit that is then there, old or new, vouches
        for files that are there as it says. The older artefacts whose commits are gone have to be made again. In a
        batch without commits, each file is either old or new.

        Raises JointspaceError, and removes the temporary files, if a rename fails, for instance because a folder has
        one of the names.
        """
        path = Path()
        try:
            for path in reversed(self._commits):
                path.unlink(missing_ok=True)
            for path, temporary in self._written.items():
                _rename(temporary, path)
        except OSError as error:
            self.discard()
            raise cannot_write(path, 0, error) from error
        self._written, self._commits = {}, []

    @contextmanager
    def discarded_on_error(self) -> Iterator[None]:
        """Remove the temporary files if the block raises an error."""
        try:
            yield
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        for temporary in self._written.values():
            with suppress(OSError):  # the caller gets the error that made the batch fail
                temporary.unlink(missing_ok=True)
        self._written, self._commits = {}, []


def publish_bytes(path: Path, data: bytes | memoryview | Iterator[bytes]) -> None:
    """Write a file atomically, at once or in parts, without a commit."""
    batch = FileBatch()
    batch.add(path, data)
    batch.publish()


def publish_text(path: Path, text: str) -> None:
    publish_bytes(path, text.encode())


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """Yield a folder that becomes `output` if the block succeeds, and is removed otherwise. Folders that killed
    processes left of `output` are removed. The caller holds the lock of `output`.

    Raises UsageError where `output` exists, and JointspaceError if it cannot be written.
    """
    if os.path.lexists(output):
        raise UsageError(f"{output} already exists. Give a new folder.")
    folder = _temporary(output)
    for path in output.parent.glob(f".{glob.escape(output.name)}.tmp.*"):
        if path.is_dir() and not path.is_symlink() and (path == folder or _is_abandoned(path)):
            shutil.rmtree(path)
    try:
        folder.mkdir(parents=True)
        yield folder
        sync(files_below(folder))
        os.rename(folder, output)
    except OSError as error:
        size = sum(path.stat().st_size for path in files_below(folder))
        raise cannot_write(output, size, error, "output") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def sync(paths: Iterable[Path]) -> None:
    """Have the bytes of files written to their disk."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def cannot_write(path: Path, size: int, error: OSError, key: str = "results_root") -> JointspaceError:
    """The error to raise if `size` bytes cannot be written to `path`, which the configuration's `key` places."""
    if error.errno in OCCUPIED:
        return JointspaceError(
            f"cannot write {path} ({error.strerror}); move away what is there, correct its permissions, or choose"
            f" another {key}"
        )
    there = next(folder for folder in path.absolute().parents if folder.is_dir())
    return JointspaceError(
        f"cannot write {path} ({size:,} bytes, {shutil.disk_usage(there).free:,} free on its disk):"
        f" {error.strerror or error}; make room or choose another {key}"
    )


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp.{_machine()}-{os.getpid()}")


def _machine() -> str:
    """Return 8 hexadecimal digits for this machine."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def open_no_link(path: str, flags: int) -> int:
    """An `opener` that never writes through a link."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def _rename(temporary: Path, path: Path) -> None:
    os.replace(temporary, path)
    temporary.unlink(missing_ok=True)  # which stays where both are names of one file
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sweep(folder: Path) -> None:
    """Remove the orphans (see `is_orphan`) in a folder."""
    for path in filter(is_orphan, Path(folder).glob(".*.tmp.*")):
        path.unlink(missing_ok=True)


def is_orphan(path: Path) -> bool:
    """Whether `path` is the temporary file of a dead process. A process of another machine cannot be seen from here; it
    counts as dead if its file has not changed for ABANDONED_SECONDS."""
    return is_regular(path) and _is_abandoned(path)


def _is_abandoned(path: Path) -> bool:
    match = TEMPORARY.fullmatch(path.name)
    if match is None or match["machine"] in (None, _machine()):
        return match is not None and not is_alive(int(match["pid"]))
    with suppress(FileNotFoundError):  # published meanwhile
        return time.time() - os.lstat(path).st_mtime > ABANDONED_SECONDS
    return False


def remove_own(folder: Path, names: re.Pattern[str]) -> None:
    """Remove the files of `folder` whose whole name matches `names`, the orphans (see `is_orphan`), and the folder if
    it is empty then. All other files stay."""
    if folder.is_symlink() or not folder.is_dir():
        return
    sweep(folder)
    for path in sorted(folder.iterdir()):
        if names.fullmatch(path.name) and is_regular(path):
            path.unlink(missing_ok=True)
    with suppress(OSError):  # not empty
        folder.rmdir()


def is_alive(pid: int) -> bool:
    """Whether a local process has the number `pid`."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return True

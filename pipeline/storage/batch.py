"""Publishing several files together, so that readers never see a mixture of old and new files.

Each file is written under a temporary name in its own folder and synced. When all files of the batch are written,
`os.replace` gives each file its final name, so a full disk is noticed before any older file is touched. All files are
written through plain Python file objects, because the writers of numpy, faiss and HDF5 can report success on a full
disk.

A temporary name is `.<name>.tmp.<machine>-<process>`. `<machine>` is a hash of the host name, because several machines
may share a disk. `<process>` is the number of the process.
"""

import errno
import glob
import hashlib
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypedDict

from pipeline.errors import JointspaceError, UsageError
from pipeline.storage.files import is_regular

OCCUPIED = (errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EEXIST)
"""Error numbers of writing for which more disk space is not a remedy."""
TEMPORARY = re.compile(r"\.(?P<name>.+)\.tmp\.((?P<machine>[0-9a-f]{8})-)?(?P<pid>[1-9]\d*)", re.DOTALL)
"""Pattern of temporary names. Earlier versions did not write the machine."""
ABANDONED_SECONDS = 30 * 24 * 3600
"""Age in seconds above which a temporary file of another machine counts as left behind by a dead process."""

Writer = Callable[[Callable[[bytes], object]], None]
"""A function that produces the content of a file in parts. It gets a function `write`, and calls `write(part)` for one
part after another. An example is the method `write` of a FAISS index that was built."""


class FileSum(TypedDict):
    """The size and the sha256 of a file."""

    bytes: int
    sha256: str


class FileBatch:
    """Several files that get their final names together: call `add` or `link` for each file, and then `publish`.

    Older files with these names stay intact until `publish` is called.
    """

    def __init__(self) -> None:
        self._written: dict[Path, Path] = {}
        self._commits: list[Path] = []
        # The temporary files of dead processes, by their folder and final name. `_sweep` finds them.
        self._orphans: dict[Path, dict[str, list[Path]]] = {}

    def add(self, path: Path, data: bytes | memoryview | Iterator[bytes] | Writer, commit: bool = False) -> FileSum:
        """Write `data` under a temporary name in the folder of `path`. Return the size and the sha256 of the file.

        If `data` is an iterator or a Writer, its parts are written one after another. `commit` marks a commit record,
        which vouches for files that were added before it. Raises JointspaceError if `data` cannot be written. After
        this or any other error, the temporary files of the whole batch are removed.
        """
        path = Path(path)
        temporary = self._written[path] = _temporary(path)
        digest = hashlib.sha256()
        size = 0

        def write(part: bytes | memoryview) -> None:
            nonlocal size
            size += len(part)
            digest.update(part)
            file.write(part)

        with self.discarded_on_error():
            self._sweep(path)
            try:
                with open(temporary, "wb", opener=open_no_link) as file:
                    if callable(data):
                        data(write)
                    else:
                        for part in data if isinstance(data, Iterator) else (memoryview(data).cast("B"),):
                            write(part)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise cannot_write(path, size, error) from error
        if commit:
            self._commits.append(path)
        return {"bytes": size, "sha256": digest.hexdigest()}

    def link(self, path: Path, source: Path) -> None:
        """Add a hard link to the existing file `source`. The link gets the name `path` when the batch is published.

        Raises OSError if the link cannot be made, for example because the file system does not support hard links, and
        JointspaceError if the folder of `path` cannot be created.
        """
        self._sweep(path)
        os.link(source, _temporary(path))
        self._written[path] = _temporary(path)

    def _sweep(self, path: Path) -> None:
        """Create the folder of `path`, and remove the temporary files of `path` that dead processes have left.

        Raises JointspaceError if the folder cannot be created or a file cannot be removed.
        """
        try:
            if path.parent not in self._orphans:
                path.parent.mkdir(parents=True, exist_ok=True)
                orphans = self._orphans[path.parent] = {}
                for orphan in filter(is_orphan, path.parent.glob(".*.tmp.*")):
                    if match := TEMPORARY.fullmatch(orphan.name):
                        orphans.setdefault(match["name"], []).append(orphan)
            # A killed process with the same process number may have left a hard link under the temporary name. Writing
            # to this link would overwrite another file.
            for orphan in (*self._orphans[path.parent].pop(path.name, ()), *filter(is_regular, [_temporary(path)])):
                orphan.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(path, 0, error) from error

    def publish(self) -> None:
        """Give all files their final names.

        The older commit records are removed first, in reverse order. Then the files are renamed in the order in which
        they were added. If the process is killed before the end, or a rename fails, some files are new and others are
        old or missing. Readers still never see a mixture, because each commit record that exists at that moment, old or
        new, vouches for files that match it. An artefact whose older record was removed, but whose new record has not
        appeared, has to be made again. In a batch without commit records, each file is either old or new.

        If a rename fails, for example because a folder has one of the names, the temporary files are removed, and
        JointspaceError is raised.
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
        self._written = {}
        self._commits = []

    @contextmanager
    def discarded_on_error(self) -> Iterator[None]:
        """Remove the temporary files of the batch if the block raises an error, which is raised again."""
        try:
            yield
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove the temporary files of the batch. Older files keep their names."""
        for temporary in self._written.values():
            with suppress(OSError):  # The caller already gets the error that made the batch fail.
                temporary.unlink(missing_ok=True)
        self._written = {}
        self._commits = []


def publish_bytes(path: Path, data: bytes | memoryview | Iterator[bytes]) -> None:
    """Write one file atomically, without a commit record. An iterator is written part by part.

    Raises JointspaceError if the file cannot be written.
    """
    batch = FileBatch()
    batch.add(path, data)
    batch.publish()


def publish_text(path: Path, text: str) -> None:
    """Write one text file atomically, as UTF-8 and without a commit record.

    Raises JointspaceError if the file cannot be written.
    """
    publish_bytes(path, text.encode())


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `output` if the block succeeds, and removed otherwise.

    Temporary folders of `output` that killed processes left behind are removed. The caller must hold the lock of
    `output`. Raises UsageError if `output` already exists, and JointspaceError if the folder cannot be made or renamed,
    or if the block raises an OSError.
    """
    if os.path.lexists(output):
        raise UsageError(f"{output} already exists. Name a folder that does not exist yet.")
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
    """Return all files in a folder and its subfolders, sorted by path. Links to files count as files."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def sync(paths: Iterable[Path]) -> None:
    """Wait until the content of these files is on the disk (fsync)."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def cannot_write(path: Path, size: int, error: OSError, key: str = "results_root") -> JointspaceError:
    """Return the error to raise if `size` bytes could not be written to `path`.

    `key` is the configuration key, or the option, with which the user chooses another folder.
    """
    if error.errno in OCCUPIED:
        return JointspaceError(
            f"jointspace cannot write {path} ({error.strerror}). Move the existing file or folder away, correct its"
            f" permissions, or choose another {key}."
        )
    there = next(folder for folder in path.absolute().parents if folder.is_dir())
    return JointspaceError(
        f"jointspace cannot write {path} ({size:,} bytes needed, {shutil.disk_usage(there).free:,} free on its disk):"
        f" {error.strerror or error}. Free some disk space, or choose another {key}."
    )


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp.{_machine()}-{os.getpid()}")


def _machine() -> str:
    """Return 8 hexadecimal digits that identify this machine: a hash of its host name."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def open_no_link(path: str, flags: int) -> int:
    """Open a file for writing, as an `opener` of `open`. Raises OSError if the path is a symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def _rename(temporary: Path, path: Path) -> None:
    os.replace(temporary, path)
    temporary.unlink(missing_ok=True)  # os.replace leaves both names if they are hard links to one file.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sweep(folder: Path) -> None:
    """Remove the temporary files in `folder` that dead processes have left. Files in subfolders stay. `is_orphan`
    decides which processes are dead."""
    for path in filter(is_orphan, Path(folder).glob(".*.tmp.*")):
        path.unlink(missing_ok=True)


def is_orphan(path: Path) -> bool:
    """Return whether `path` is the temporary file of a dead process.

    This machine cannot see the processes of other machines. A process of another machine counts as dead if its file has
    not changed for ABANDONED_SECONDS.
    """
    return is_regular(path) and _is_abandoned(path)


def _is_abandoned(path: Path) -> bool:
    match = TEMPORARY.fullmatch(path.name)
    if match is None or match["machine"] in (None, _machine()):
        return match is not None and not is_alive(int(match["pid"]))
    with suppress(FileNotFoundError):  # If the file no longer exists, its process has published it in the meantime.
        return time.time() - os.lstat(path).st_mtime > ABANDONED_SECONDS
    return False


def remove_own(folder: Path, names: re.Pattern[str]) -> None:
    """Remove the files directly in `folder` whose whole name matches `names`, and temporary files of dead processes.

    If the folder is empty afterwards, it is removed too. All other files stay. Nothing happens if `folder` is a link or
    does not exist.
    """
    if folder.is_symlink() or not folder.is_dir():
        return
    sweep(folder)
    for path in sorted(folder.iterdir()):
        if names.fullmatch(path.name) and is_regular(path):
            path.unlink(missing_ok=True)
    with suppress(OSError):  # The folder stays if it is not empty.
        folder.rmdir()


def is_alive(pid: int) -> bool:
    """Return whether a process with the number `pid` runs on this machine."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # The process exists and belongs to another user.
        pass
    return True

"""Files that become visible together: written under temporary names, then renamed.

Each file is written under a temporary name in its own folder, synced, and read back. Only when all of them are there
does `os.replace` give each its name, so a full disk is noticed before any older file is touched. Plain Python file
objects do the writing: the writers of numpy, faiss and HDF5 can report success on a full disk.
"""

import errno
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.errors import JointspaceError
from pipeline.storage.reading import file_sha256

OCCUPIED = (errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EEXIST)
"""Errors that more disk space does not cure."""
TEMPORARY = re.compile(r"\.(?P<name>.+)\.tmp\.(?P<pid>[1-9]\d*)", re.DOTALL)


class FileBatch:
    """`add` every file, then `publish`. Until then, older files of these names stay whole."""

    def __init__(self) -> None:
        self._written: dict[Path, Path] = {}
        self._commits: list[Path] = []
        self._orphans: dict[Path, dict[str, list[Path]]] = {}  # by folder and name, found when it is first written to

    def add(self, path: Path, data: bytes | memoryview | Iterator[bytes], commit: bool = False) -> str:
        """Write `data`, or all of it in turn, under a temporary name beside `path`; returns its sha256.

        A `commit` vouches for files that were added before it. Raises JointspaceError if `data` cannot be written, and
        then removes everything in the batch.
        """
        path, parts = Path(path), data if isinstance(data, Iterator) else iter([memoryview(data).cast("B")])
        try:
            self._sweep(path)
            self._written[path], sha256 = _write_temporary(path, parts)
        except BaseException:
            self.discard()
            raise
        self._commits += [path] if commit else []
        return sha256

    def add_file(self, path: Path, data: bytes | memoryview | Iterator[bytes], commit: bool = False) -> dict[str, Any]:
        """The same; returns the file's `bytes` and `sha256`, as a commit has them."""
        sha256 = self.add(path, data, commit)
        return {"bytes": self._written[Path(path)].stat().st_size, "sha256": sha256}

    def place_for(self, path: Path) -> Path:
        """The temporary name under which another library writes the file `path`, for `adopt` to take over."""
        self._sweep(path)
        return _temporary(path)

    def adopt(self, path: Path, sha256: str | None = None) -> str:
        """Take over what was written at `place_for(path)`; returns its sha256, unless that is given."""
        temporary = self._written[path] = _temporary(path)
        if sha256 is not None:
            return sha256
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        return file_sha256(temporary)

    def _sweep(self, path: Path) -> None:
        """Make the folder of `path`, and remove what dead local processes left of that file."""
        try:
            if path.parent not in self._orphans:
                path.parent.mkdir(parents=True, exist_ok=True)
                found = self._orphans[path.parent] = {}
                for orphan in filter(is_orphan, path.parent.glob(".*.tmp.*")):
                    found.setdefault(TEMPORARY.fullmatch(orphan.name)["name"], []).append(orphan)
            for orphan in self._orphans[path.parent].pop(path.name, ()):
                orphan.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(path, 0, error) from error

    def publish(self) -> None:
        """Give all files their names. Raises JointspaceError, and removes the temporary files, if a folder has one of
        the names or a file's folder is not writable."""
        path = Path()
        try:
            # Old commits go first, the last one at once: new bytes must not pass for the old artefact.
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
        """Within, an error of whoever computes what is added removes the temporary files, too."""
        try:
            yield
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        for temporary in self._written.values():
            temporary.unlink(missing_ok=True)
        self._written, self._commits = {}, []


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
    return path.with_name(f".{path.name}.tmp.{os.getpid()}")


def _write_temporary(path: Path, parts: Iterable[bytes | memoryview]) -> tuple[Path, str]:
    """The new file, and its sha256."""
    temporary, digest, size = _temporary(path), hashlib.sha256(), 0
    try:
        with open(temporary, "wb", opener=open_no_link) as file:
            for part in parts:
                size += len(part)
                digest.update(part)
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        if file_sha256(temporary) != digest.hexdigest():
            raise OSError("what was read back differs from what was written")
    except BaseException as error:
        failure = cannot_write(path, size, error) if isinstance(error, OSError) else error
        if path.parent.is_dir():
            temporary.unlink(missing_ok=True)
        raise failure from error
    return temporary, digest.hexdigest()


def open_no_link(path: str, flags: int) -> int:
    """An `opener` that never writes through a link."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def _rename(temporary: Path, path: Path) -> None:
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sweep(folder: Path) -> list[Path]:
    """Remove the temporary files of dead local processes; returns them."""
    removed = [path for path in Path(folder).glob(".*.tmp.*") if is_orphan(path)]
    for path in removed:
        path.unlink(missing_ok=True)
    return removed


def is_orphan(path: Path) -> bool:
    """Whether `path` is a temporary file of a dead local process."""
    match = TEMPORARY.fullmatch(path.name)
    return match is not None and is_regular(path) and not is_alive(int(match["pid"]))


def is_regular(path: Path) -> bool:
    """Whether `path` is itself a regular file: not a link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def remove_own(folder: Path, names: re.Pattern[str]) -> None:
    """Remove the files of `folder` whose whole name matches `names`, temporary files of dead writers, and then the
    folder, if it is empty. All other files stay."""
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

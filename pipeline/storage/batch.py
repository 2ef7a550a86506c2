"""Files that become visible together: written under temporary names, then renamed.

The order for each is: temporary name in the same folder, write, fsync, re-read and check; when all are there,
`os.replace` and fsync of the folder, one after the other. What does not fit on the disk is thus known before any older
file is touched. Everything is written by plain Python file objects: the writers of numpy, faiss and HDF5 can report
success on a full disk.
"""

import errno
import glob
import hashlib
import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from pipeline.errors import JointspaceError
from pipeline.storage.reading import file_sha256

OCCUPIED = (errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EEXIST)
"""What making room on a disk does not help."""
TEMPORARY = re.compile(r"\.(?P<name>.+)\.tmp\.(?P<pid>[1-9]\d*)", re.DOTALL)


class FileBatch:
    """`add` every file, then `publish`; older files of these names are whole until then."""

    def __init__(self) -> None:
        self._written: dict[Path, Path] = {}
        self._commits: list[Path] = []

    def add(self, path: Path, data: bytes | memoryview, commit: bool = False) -> str:
        """Write `data` under a temporary name beside `path`; returns its sha256.

        A `commit` vouches for files that were added before it. Raises JointspaceError, with nothing of the batch left,
        where `data` cannot be written.
        """
        path, data = Path(path), memoryview(data).cast("B")
        sha256 = hashlib.sha256(data).hexdigest()
        try:
            self._written[path] = _write_temporary(path, data, sha256)
        except BaseException:
            self.discard()
            raise
        self._commits += [path] if commit else []
        return sha256

    def place_for(self, path: Path) -> Path:
        """The temporary name under which another library is to write the file `path`, before `adopt` takes it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, path.name)
        return _temporary(path)

    def adopt(self, path: Path) -> str:
        """Take over what was written at `place_for(path)`; returns its sha256."""
        temporary = _temporary(path)
        self._written[path] = temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        return file_sha256(temporary)

    def publish(self) -> None:
        """Give all files their names. Raises JointspaceError, with nothing left under a temporary name, where a folder
        stands in the place of one of them or its folder may not be written."""
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

    def discard(self) -> None:
        """Remove what was written."""
        for temporary in self._written.values():
            temporary.unlink(missing_ok=True)
        self._written, self._commits = {}, []


def cannot_write(path: Path, size: int, error: OSError, key: str = "results_root") -> JointspaceError:
    """What to raise where `size` bytes do not fit at `path`, or cannot be written; `key` says where it lies."""
    if error.errno in OCCUPIED:
        return JointspaceError(
            f"cannot write {path} ({error.strerror}); move away what stands there, correct its permissions, or choose"
            f" another {key}"
        )
    there = next(folder for folder in path.absolute().parents if folder.is_dir())
    return JointspaceError(
        f"cannot write {path} ({size:,} bytes, {shutil.disk_usage(there).free:,} free on its disk):"
        f" {error.strerror or error}; make room or choose another {key}"
    )


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp.{os.getpid()}")


def _write_temporary(path: Path, data: memoryview, sha256: str) -> Path:
    temporary = _temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, path.name)
        with open(temporary, "wb", opener=open_no_link) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if file_sha256(temporary) != sha256:
            raise OSError("what was read back differs from what was written")
    except OSError as error:
        failure = cannot_write(path, len(data), error)
        if path.parent.is_dir():
            temporary.unlink(missing_ok=True)
        raise failure from error
    return temporary


def open_no_link(path: str, flags: int) -> int:
    """An `opener` for files of ours: nothing is written through a link."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def _rename(temporary: Path, path: Path) -> None:
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sweep(folder: Path, name: str | None = None) -> list[Path]:
    """Remove temporary files (of the artefact `name` only) whose process on this machine is gone; returns them."""
    pattern = "*" if name is None else glob.escape(name)
    removed = [path for path in Path(folder).glob(f".{pattern}.tmp.*") if is_orphan(path)]
    for path in removed:
        path.unlink(missing_ok=True)
    return removed


def is_orphan(path: Path) -> bool:
    """Whether `path` is a temporary file whose process on this machine is gone."""
    match = TEMPORARY.fullmatch(path.name)
    return match is not None and is_regular(path) and not is_alive(int(match["pid"]))


def is_regular(path: Path) -> bool:
    """Whether `path` is a file itself: not a link to one, a folder, a pipe or nothing."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def remove_own(folder: Path, names: re.Pattern[str]) -> None:
    """Remove the files of `folder` whose whole name is one of `names`, and the temporary ones of dead writers; then the
    folder, if nothing is left in it. Whatever else lies there stays."""
    if folder.is_symlink() or not folder.is_dir():
        return
    sweep(folder)
    for path in sorted(folder.iterdir()):
        if names.fullmatch(path.name) and is_regular(path):
            path.unlink(missing_ok=True)
    with suppress(OSError):  # not empty
        folder.rmdir()


def is_alive(pid: int) -> bool:
    """Whether a process of this machine has the number `pid`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    except OverflowError:
        return False
    return True

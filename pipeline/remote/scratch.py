"""Local copies of objects, for as long as a job needs them.

A job has a folder of its own below `folder`, with a lock that ends with the job, so that the next one on this machine
removes what a killed one left. Its processes share the copies: whoever needs one first fetches it.
"""

import json
import os
import re
import shutil
import tempfile
import weakref
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pipeline.errors import UnreachableError
from pipeline.plain_files import UnopenedFile, private_folder
from pipeline.remote import stores
from pipeline.remote.paths import WEB, Place, RemotePath
from pipeline.remote.stores import Version

PART, LOG, KEPT = "fetching.part", "fetched.jsonl", ".kept"
OWN = re.compile(r"\d+-[a-z0-9_]{8}")
"""What a job's folder is called: its process, and what `tempfile` draws."""


class Scratch:
    """Copies of objects, at most `gigabytes` below the folder `folder` (None: the machine's own for temporary files).
    Can be pickled: the copy is of the same job.
    """

    def __init__(self, folder: str | None, gigabytes: float) -> None:
        self.parent = Path(folder or tempfile.gettempdir()) / f"jointspace-{os.getuid()}"
        self.bytes = round(gigabytes * 1e9)
        self._own: Path | None = None
        self._kept: Any = None
        self._known: dict[str, tuple[int, str]] = {}
        self._read_to = 0

    @classmethod
    def of(cls, settings: Any) -> "Scratch":
        """By the section `remote` of a configuration."""
        return cls(settings.scratch, settings.scratch_gb)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": self.folder, "_kept": None}

    def local(self, path: Place) -> Path:
        """The file or folder itself, or a copy of all of it under its own name, which stays for the job; beside it are
        those of its neighbours."""
        if isinstance(path, Path):
            return path
        try:
            wanted = {"": stores.look(path)}
        except UnopenedFile:
            wanted = {} if path.scheme in WEB else stores.find(path)
            if not wanted:
                raise
        copy = self.folder / f"{_digest(path.parent)}{KEPT}" / path.name
        with self._fetching():
            for name, version in wanted.items():
                if name and any(part in ("", ".", "..") or "\0" in part for part in name.split("/")):
                    raise UnreachableError(f"{path} has an object {name!r}, which is not a plain name; rename it")
                if not (target := copy / name if name else copy).exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    self._fetch(path / name, target, version)
        return copy

    def open(self, path: RemotePath, version: Version | None = None, digest: str | None = None) -> int:
        """The descriptor of a copy, to be closed. Raises UnopenedFile, and UnreachableError, also where the object
        is not of this `version`, or not of the sha256 `digest`."""
        copy = self.folder / _digest(path)
        with self._fetching():
            if not copy.exists():
                self._fetch(path, copy, version or stores.look(path), digest)
            os.utime(copy)
            return os.open(copy, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def fetched(self) -> dict[str, tuple[int, str]]:
        """Size and sha256 of each object that was fetched so far, by its URL."""
        log = self.folder / LOG
        if log.exists():
            with open(log, "rb") as file:
                file.seek(self._read_to)
                for line in file:
                    if line.endswith(b"\n"):
                        path, size, digest = json.loads(line)
                        self._known[path] = size, digest
                        self._read_to += len(line)
        return self._known

    def _fetching(self) -> FileLock:
        """Held by the one process of the job that fetches, so that its copies are bounded."""
        return FileLock(self.folder / "fetching.lock")

    def _fetch(self, path: RemotePath, target: Path, version: Version, digest: str | None = None) -> None:
        self._make_room(path, version.size or 0)
        part, before = self.folder / PART, self.fetched.get(str(path))
        try:
            fetched = stores.fetch(path, part, version)
        except UnopenedFile:  # it was there when it was listed
            raise stores.changed(path) from None
        if fetched != (digest or (before[1] if before else fetched)):
            raise stores.changed(path)
        if before is None:
            with open(self.folder / LOG, "a", encoding="utf-8") as log:
                log.write(json.dumps([str(path), part.stat().st_size, fetched]) + "\n")
        os.replace(part, target)

    def _make_room(self, path: RemotePath, size: int) -> None:
        """Remove the copies that were used longest ago. Raises UnreachableError for an object that is too large."""
        files = [file for file in self.folder.rglob("*") if file.is_file()]
        there = {file: file.stat() for file in files}
        taken = sum(status.st_size for status in there.values())
        for file in sorted(there, key=lambda file: there[file].st_mtime_ns):
            if taken + size > self.bytes and file.parent == self.folder and not file.suffix:
                file.unlink()
                taken -= there[file].st_size
        if taken + size > self.bytes:
            raise UnreachableError(
                f"{path} has {size:,} bytes, for which scratch has no room beside {taken:,} others; raise"
                " remote.scratch_gb"
            )

    @property
    def folder(self) -> Path:
        """The job's own folder; what dead jobs left beside it is removed."""
        if self._own is None:
            sweep(private_folder(self.parent, "set remote.scratch to another"))
            lock = FileLock(tempfile.mktemp(".lock", f"{os.getpid()}-", self.parent), timeout=0)
            lock.acquire()
            self._own = Path(lock.lock_file).with_suffix("")
            self._own.mkdir(mode=0o700)
            self._kept = lock, weakref.finalize(self, _remove, self._own, lock)
        return self._own


def _digest(path: RemotePath) -> str:
    return sha256(str(path).encode()).hexdigest()[:32]


def sweep(parent: Path) -> None:
    """Remove the folders of jobs that are gone."""
    for folder in parent.iterdir():
        if OWN.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
            lock = FileLock(folder.with_suffix(".lock"), timeout=0)
            with suppress(Timeout, OSError):
                lock.acquire()
                _remove(folder, lock)


def _remove(folder: Path, lock: FileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()

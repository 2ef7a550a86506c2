"""A disk that is too small: a tmpfs that is filled until only a chosen number of free pages is left."""

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE = os.sysconf("SC_PAGESIZE")
"""Size in bytes of the pages that a tmpfs allocates."""
DISK_BYTES = 32 << 20
"""Size of the tmpfs."""
MEASURED_KEYS = {
    "build_seconds", "queries_per_second", "exact_queries_per_second", "latency_ms", "rates", "seconds", "check",
}  # fmt: skip
"""Keys of JSON files whose values are measured times or depend on measured times."""


class Disk(NamedTuple):
    """A file system that is mounted at `root`. The file `ballast` takes up room in it."""

    root: Path

    @property
    def ballast(self) -> Path:
        return self.root / "ballast"

    def leave(self, pages: int) -> None:
        """Write the ballast so that exactly `pages` pages stay free."""
        stat = os.statvfs(self.root)
        with open(self.ballast, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, (stat.f_bavail - pages) * stat.f_bsize)


def mount_disk(root: Path) -> Iterator[Disk]:
    """Mount a disk of DISK_BYTES bytes in memory at the new folder `root`, and unmount it at the end. The test is
    skipped if the disk cannot be mounted, for example because the user is not root."""
    root.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", root], capture_output=True
    ).returncode:
        pytest.skip("this machine does not allow mounting a tmpfs, which needs root")
    try:
        yield Disk(root)
    finally:
        subprocess.run(["umount", root], check=True)


def files_of(root: Path) -> dict[str, Path]:
    """Return the regular files under `root` without links, as relative path -> path."""
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(root).as_posix(): path for path in files}


def contents(root: Path) -> dict[str, bytes]:
    """Return the contents of the regular files under `root`, as relative path -> bytes.

    In the bytes, the path of `root` is replaced by ROOT, because some files, such as reports, contain this path.
    """
    return {name: path.read_bytes().replace(os.fsencode(root), b"ROOT") for name, path in files_of(root).items()}


def equal_except_times(first: bytes, second: bytes) -> bool:
    """Return whether two files have the same content. In JSON files, the values of MEASURED_KEYS and of the key `files`
    may differ, because they depend on measured times."""
    if first == second:
        return True
    try:
        return without_times(json.loads(first)) == without_times(json.loads(second))
    except ValueError:
        return False


def without_times(value: object) -> object:
    """Return a JSON value without the measured times, and without the key `files`, whose digests depend on times."""
    if isinstance(value, dict):
        return {key: without_times(value[key]) for key in value.keys() - MEASURED_KEYS - {"files"}}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def count_pages(paths: Iterable[Path]) -> int:
    """Return the number of pages that the files occupy."""
    return sum(-(-path.stat().st_size // PAGE) for path in paths)

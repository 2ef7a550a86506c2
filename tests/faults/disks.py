"""A disk that is too small: a tmpfs of its own, which takes whole pages, filled up to as many as are wanted."""

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE = os.sysconf("SC_PAGESIZE")
SIZE = 32 << 20
MEASURED = {
    "build_seconds", "queries_per_second", "exact_queries_per_second", "latency_ms", "rates", "seconds", "check",
}  # fmt: skip
"""Keys of JSON files whose values are measured times, or follow from them."""


class Disk(NamedTuple):
    """A file system of its own at `root`, whose `ballast` leaves as much room as is wanted."""

    root: Path

    @property
    def ballast(self) -> Path:
        return self.root / "ballast"

    def leave(self, pages: int) -> None:
        stat = os.statvfs(self.root)
        with open(self.ballast, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, (stat.f_bavail - pages) * stat.f_bsize)


def mounted(root: Path) -> Iterator[Disk]:
    """The disk at `root` until the generator ends; the test is skipped where this machine allows none."""
    root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", root], capture_output=True).returncode:
        pytest.skip("this machine does not allow mounting a tmpfs, which needs root")
    try:
        yield Disk(root)
    finally:
        subprocess.run(["umount", root], check=True)


def files_of(root: Path) -> dict[str, Path]:
    """The files under `root`, but for links."""
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(root).as_posix(): path for path in files}


def contents(root: Path) -> dict[str, bytes]:
    """The bytes of the files under `root`, but for where they name it, as a report does."""
    return {name: path.read_bytes().replace(os.fsencode(root), b"ROOT") for name, path in files_of(root).items()}


def same(ours: bytes, theirs: bytes) -> bool:
    """Whether the contents of two files are equal, but for times that were measured if they are JSON."""
    if ours == theirs:
        return True
    try:
        return without_times(json.loads(ours)) == without_times(json.loads(theirs))
    except ValueError:
        return False


def without_times(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_times(value[key]) for key in value.keys() - MEASURED - {"files"}}
    return [without_times(part) for part in value] if isinstance(value, list) else value


def pages(paths: Iterable[Path]) -> int:
    return sum(-(-path.stat().st_size // PAGE) for path in paths)

"""Every kind of writer on a disk that is too small: one sentence, nothing half-written, the old artefact as it was.

A disk is a tmpfs of its own, which takes whole pages: the least that it can be short of is one page. That a shortfall
of 40 bytes is noticed too is tested on `publish` in tests/storage/test_atomic.py.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from test_kills import without_times
from writers import ONE_BY_ONE, RESUMED, WITHOUT_LOCK, WRITERS

from pipeline.errors import JointspaceError
from pipeline.storage.checkpoints import Checkpoints
from pipeline.storage.parsers import find_parser

PAGE = os.sysconf("SC_PAGESIZE")
DISK = 8 << 20


class Disk(NamedTuple):
    """A file system of its own at `root`, whose `ballast` leaves as much room as is wanted."""

    root: Path

    @property
    def ballast(self) -> Path:
        return self.root / "ballast"

    def leave(self, pages: int) -> None:
        self.ballast.unlink(missing_ok=True)
        stat = os.statvfs(self.root)
        with open(self.ballast, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, (stat.f_bavail - pages) * stat.f_bsize)
        assert os.statvfs(self.root).f_bavail == pages

    def files(self) -> dict[str, Path]:
        found = [path for path in self.root.rglob("*") if path.is_file() and path != self.ballast]
        return {path.relative_to(self.root).as_posix(): path for path in found}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    (root := tmp_path / "disk").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", root], capture_output=True).returncode:
        pytest.skip("this machine does not allow mounting a tmpfs")
    try:
        yield Disk(root)
    finally:
        subprocess.run(["umount", root], check=True)


def pages(paths: list[Path]) -> int:
    return sum(-(-path.stat().st_size // PAGE) for path in paths)


def refusal(write: Callable[[], None], disk: Disk) -> None:
    """That `write` fails in the one sentence that it should."""
    with pytest.raises(JointspaceError) as caught:
        write()
    sentence = rf"cannot write {disk.root}/\S+ \([\d,]+ bytes, [\d,]+ free on its disk\): No space left on device; make"
    assert caught.value.exit_code == 1 and re.match(sentence, str(caught.value)), caught.value
    assert "\n" not in str(caught.value)


def same(ours: bytes, theirs: bytes) -> bool:
    """Whether files are equal; of a bundle's JSON, everything but measured times."""
    if ours == theirs:
        return True
    return without_times(json.loads(ours)) == without_times(json.loads(theirs))


@pytest.mark.parametrize(
    "short", ["one page", *(pytest.param(s, marks=pytest.mark.slow) for s in ("half", "everything"))]
)
@pytest.mark.parametrize("name", WRITERS)
def test_a_new_artefact(name: str, short: str, disk: Disk, finished: Path, collection: Path, tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    WRITERS[name](elsewhere, finished, collection)
    whole = {p.relative_to(elsewhere).as_posix(): p.read_bytes() for p in elsewhere.rglob("*") if p.is_file()}
    need = sum(-(-len(data) // PAGE) for data in whole.values()) + (name not in WITHOUT_LOCK)
    spare = int(name == "build_index")  # its measured times may have other lengths
    disk.leave({"one page": need - 1 - spare, "half": need // 2, "everything": 0}[short])

    refusal(lambda: WRITERS[name](disk.root, finished, collection), disk)

    left = disk.files()
    assert not any(part.startswith(".") for path in left for part in path.split("/") if path != "demo/.jointspace-demo")
    if name in ONE_BY_ONE:
        assert all(same(path.read_bytes(), whole[file]) for file, path in left.items() if file in whole)
        assert not {file for file in left if file not in whole and ".parts/" not in file}
    else:
        assert not left
        disk.leave(need + spare)  # exactly enough: it was short by a page, and no more
    if name in ONE_BY_ONE:
        disk.ballast.unlink()
    WRITERS[name](disk.root, finished, collection)
    assert disk.files().keys() == whole.keys()
    assert all(same(path.read_bytes(), whole[file]) for file, path in disk.files().items())


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in RESUMED])
def test_an_old_artefact_stays(name: str, disk: Disk, finished: Path, collection: Path) -> None:
    """Made again with one page too few: no file of the old one is touched."""
    WRITERS[name](disk.root, finished, collection)
    before = {file: path.stat().st_ino for file, path in disk.files().items()}
    WRITERS[name](disk.root, finished, collection)
    made = [path for file, path in disk.files().items() if path.stat().st_ino != before.get(file)]
    assert made
    before = {file: path.stat().st_ino for file, path in disk.files().items()}
    data = {file: path.read_bytes() for file, path in disk.files().items()}
    # Where one artefact follows the other, the first ones take the place of their old ones; the last needs the most.
    disk.leave(0 if name in ONE_BY_ONE else pages(made) + (name not in WITHOUT_LOCK) - 1)

    refusal(lambda: WRITERS[name](disk.root, finished, collection), disk)

    assert {file: path.stat().st_ino for file, path in disk.files().items()} == before
    assert {file: path.read_bytes() for file, path in disk.files().items()} == data
    if name == "checkpoint":
        assert Checkpoints(disk.root / "checkpoints", "f", 0).latest().settings == {"step": 1}
    if name == "parser":
        find_parser(disk.root / "parser", None, disk.root)  # which checks every file
    disk.ballast.unlink()
    WRITERS[name](disk.root, finished, collection)


def test_the_command_ends_with_1_and_one_line(disk: Disk, finished: Path, collection: Path) -> None:
    disk.leave(0)
    command = [sys.executable, "-m", "stages.cli", "summarise", finished / "evaluation/ncca.test.all-sentences.json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run(
        [*command, "--output", disk.root / "s.json"], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"jointspace: cannot write {disk.root}/s.md (")
    assert list(disk.files()) == []

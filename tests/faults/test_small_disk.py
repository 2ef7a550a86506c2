"""Every command that writes on a disk that is too small: by a page, by half, by all, and by 40 bytes.

A tmpfs takes whole pages. By 40 bytes the largest file of a command is cut off by the kernel's limit on the size of
files, which like a full disk writes what fits, and refuses the rest.
"""

import re
import shutil
from pathlib import Path

import pytest
from cases import REFUSING, Case, all_cases
from disks import PAGE, Disk, contents
from nurseries import Disturbed, Ended, Nursery, same
from tiny_run import elsewhere

NAMES = tuple(all_cases(Path("root"), Path("place")))
RESUMED = {"make_demo", "apply", *REFUSING}
"""Cases that leave alone, or refuse, what is there already."""
SHORTFALL = 40
TIMED = {"build_index", "build_sets", "build_gru", "apply", "index_add", "index_remove", "sweep"}
"""Cases whose files hold measured times, and so may need another page the next time."""
UNFINISHED = ("checkpoints", ".parts", "demo", "applied.json")
"""Folders and records of work that the next run goes on with, or does again."""


class Command:
    """The first call of a case, its output on a disk."""

    def __init__(self, case: Case, nursery: Nursery) -> None:
        self.stage, self.nursery = case.stage, nursery
        self.arguments = case.calls[0]

    @property
    def one_by_one(self) -> bool:
        """Whether it makes several artefacts, one after the other."""
        return "--output" not in self.arguments

    def run(self, root: Path, largest: int | None = None) -> Ended:
        return self.nursery.run(self.stage, elsewhere(self.stage, self.arguments, root), largest=largest)

    def make(self, root: Path) -> dict[str, bytes]:
        """What it makes where there is room."""
        done = self.run(root)
        assert done.code == 0, done
        return contents(root)


def clear(disk: Disk) -> None:
    for path in disk.root.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def pages_needed(command: Command, disk: Disk, whole: dict[str, bytes]) -> int:
    """The fewest pages with which the command succeeds: those of its files and its lock, or more where checkpoints or
    temporary files lie beside these for a while."""
    least = sum(-(-len(data) // PAGE) for data in whole.values())

    def suffices(count: int) -> bool:
        clear(disk)
        disk.leave(count)
        return command.run(disk.root).code == 0

    enough = least + 2  # of the lock, and of JSON files with measured times, which may be longer
    while not suffices(enough):
        least, enough = enough, 2 * enough
    while enough - least > 1:
        middle = (least + enough) // 2
        least, enough = (least, middle) if suffices(middle) else (middle, enough)
    while suffices(enough - 1):  # less than all its files, whose JSON can be shorter now
        enough -= 1
    return enough


def check_refusal(command: Command, disk: Disk, why: str, largest: int | None = None) -> None:
    done = command.run(disk.root, largest)
    assert done.code == 1 and re.match(disk.refusal(why), done.said), done
    left = [Path(name) for name in disk.files()]
    assert not [name for name in left if re.search(r"\.tmp|\.lock", str(name))], left


def check_left(disk: Disk, whole: dict[str, bytes]) -> None:
    """What is left is whole, or work to go on with."""
    found = contents(disk.root)
    for name in disk.files():
        if not any(part.endswith(UNFINISHED) for part in Path(name).parts):
            assert same(found[name], whole[name]), name


def check_made_again(command: Command, disk: Disk, whole: dict[str, bytes]) -> None:
    disk.ballast.unlink(missing_ok=True)
    made = command.make(disk.root)
    assert made.keys() == whole.keys()
    assert all(same(made[name], whole[name]) for name in whole)


def command_of(name: str, whole: Disturbed, nursery: Nursery) -> Command:
    if not whole.cases[name].possible:
        pytest.skip("its library is not installed")
    return Command(whole.cases[name], nursery)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_a_command_without_room(
    name: str, whole: Disturbed, whole_nursery: Nursery, disk: Disk, tmp_path: Path
) -> None:
    command = command_of(name, whole, whole_nursery)
    (afar := tmp_path / "afar").mkdir()  # as long a name as the disk's
    made = command.make(afar)
    need = pages_needed(command, disk, made)
    for room in (max(0, need - 1 - (name in TIMED)), need // 2, 0):
        clear(disk)
        disk.leave(room)
        check_refusal(command, disk, "No space left on device")
        check_left(disk, made)
        check_made_again(command, disk, made)
    clear(disk)
    check_refusal(command, disk, "File too large", max(map(len, made.values())) - SHORTFALL)
    check_left(disk, made)
    check_made_again(command, disk, made)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in NAMES if name not in RESUMED])
def test_its_old_artefact_stays(name: str, whole: Disturbed, whole_nursery: Nursery, disk: Disk) -> None:
    """On a disk without room, and where the largest of the files that are written anew is short of 40 bytes."""
    command = command_of(name, whole, whole_nursery)
    command.make(disk.root)
    first = inodes(disk)
    made, before = command.make(disk.root), inodes(disk)
    largest = max(len(made[file]) for file in made if first[file] != before[file])
    limits = {"No space left on device": None, "File too large": largest - SHORTFALL}
    for why, limit in limits.items():
        if limit is None:
            disk.leave(0)
        check_refusal(command, disk, why, limit)
        left, found = disk.files(), contents(disk.root)
        assert {file: found[file] for file in before} == made
        assert command.one_by_one or {file: left[file].stat().st_ino for file in before} == before
        check_left(disk, made)
        disk.ballast.unlink(missing_ok=True)
    check_made_again(command, disk, made)


def inodes(disk: Disk) -> dict[str, int]:
    return {file: path.stat().st_ino for file, path in disk.files().items()}

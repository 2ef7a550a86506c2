"""Every kind of writer on a disk that is too small: one sentence, nothing half-written, the old artefact as it was."""

import os
import re
from functools import partial
from pathlib import Path

import pytest
from disks import Disk, contents, files_of, pages, same
from writers import ONE_BY_ONE, RESUMED, WRITERS

from pipeline.errors import JointspaceError
from pipeline.storage.commit import publish

REFUSAL = (
    r"Cannot write {root}/\S+ \([\d,]+ bytes needed, [\d,]+ free on its disk\): No space left on device\."
    r" Free some disk space, or "
)


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_one_sentence_and_costs_nothing(
    name: str, disk: Disk, finished: Path, collection: Path, tmp_path: Path
) -> None:
    write = partial(WRITERS[name], run=finished, collection=collection)

    def refused(room: int) -> None:
        disk.leave(room)
        with pytest.raises(JointspaceError) as caught:
            write(disk.root)
        assert caught.value.exit_code == 1 and re.match(REFUSAL.format(root=disk.root), str(caught.value))
        disk.ballast.unlink()

    (elsewhere := tmp_path / "afar").mkdir()  # as long a name as the disk's
    write(elsewhere)
    whole = contents(elsewhere)
    refused(pages(files_of(elsewhere).values()) - 1)
    left = {file: data for file, data in contents(disk.root).items() if ".parts/" not in file}
    assert name in ONE_BY_ONE or not left
    assert all(same(data, whole[file]) for file, data in left.items()), "one of several is whole or not there"
    write(disk.root)
    found = contents(disk.root)
    assert found.keys() == whole.keys() and all(same(found[file], data) for file, data in whole.items())
    if name in RESUMED:
        return
    first = numbers(disk)
    write(disk.root)
    second, data = numbers(disk), contents(disk.root)
    made = pages(path for file, path in files_of(disk.root).items() if first.get(file) != second[file])
    # Where one artefact follows the other, the first ones take the place of their old ones; the last needs the most.
    refused(0 if name in ONE_BY_ONE else made - 1)
    assert numbers(disk) == second and contents(disk.root) == data, "no file of the old one is touched"


def numbers(disk: Disk) -> dict[str, int]:
    """The inode of each file of artefacts."""
    return {file: path.stat().st_ino for file, path in files_of(disk.root).items() if ".parts/" not in file}


@pytest.mark.parametrize("shortfall", [40, 5000])
def test_a_shortfall_of_a_few_bytes_is_noticed(disk: Disk, shortfall: int) -> None:
    publish(disk.root / "old.bin", b"some bytes", kind="thing", rows=1)
    free = os.statvfs(disk.root).f_bavail * os.statvfs(disk.root).f_bsize
    before = contents(disk.root)
    with pytest.raises(JointspaceError, match="big.bin.*Free some disk space"):
        publish(disk.root / "big.bin", b"x" * (free + shortfall), kind="thing", rows=1)
    assert contents(disk.root) == before

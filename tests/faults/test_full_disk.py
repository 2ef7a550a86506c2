"""Writers on a full disk: each one fails with a clear message, leaves no half-written file and keeps the old files."""

import os
import re
from functools import partial
from pathlib import Path

import pytest
from disks import Disk, contents, count_pages, equal_except_times, files_of
from writers import ONE_BY_ONE, RESUMED, WRITERS

from pipeline.errors import JointspaceError
from pipeline.storage.commit import publish

REFUSAL = (
    r"jointspace cannot write {root}/\S+ \([\d,]+ bytes needed, [\d,]+ free on its disk\): No space left on device\."
    r" Free some disk space, or "
)


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_gives_a_clear_message_and_changes_no_file(
    name: str, disk: Disk, finished: Path, collection: Path, tmp_path: Path
) -> None:
    """Each writer is refused when the disk lacks one page for a new artefact. A writer that replaces its output (not in
    RESUMED) is refused once more, when the disk lacks room to replace the finished artefact. A refused writer leaves
    only the blocks of unfinished shards, and files that a writer in ONE_BY_ONE has completed before."""
    write = partial(WRITERS[name], run=finished, collection=collection)

    def refused(room: int) -> None:
        disk.leave(room)
        with pytest.raises(JointspaceError) as caught:
            write(disk.root)
        assert caught.value.exit_code == 1 and re.match(REFUSAL.format(root=disk.root), str(caught.value))
        disk.ballast.unlink()

    # The name is as long as "disk", so that files that contain the path have equal sizes.
    (elsewhere := tmp_path / "afar").mkdir()
    write(elsewhere)
    whole = contents(elsewhere)
    refused(count_pages(files_of(elsewhere).values()) - 1)
    left = {file: data for file, data in contents(disk.root).items() if ".parts/" not in file}
    assert name in ONE_BY_ONE or not left
    assert all(equal_except_times(data, whole[file]) for file, data in left.items()), "a file is incomplete"
    write(disk.root)
    found = contents(disk.root)
    assert found.keys() == whole.keys() and all(equal_except_times(found[file], data) for file, data in whole.items())
    if name in RESUMED:
        return
    first = inodes(disk)
    write(disk.root)
    second = inodes(disk)
    data = contents(disk.root)
    made = count_pages(path for file, path in files_of(disk.root).items() if first.get(file) != second[file])
    # A writer in ONE_BY_ONE publishes its artefacts one after another. With free pages, it would replace the first
    # artefact.
    refused(0 if name in ONE_BY_ONE else made - 1)
    assert inodes(disk) == second and contents(disk.root) == data, "an old file was changed"


def inodes(disk: Disk) -> dict[str, int]:
    """Return the inodes of all files that do not belong to an unfinished shard, as relative path -> number."""
    return {file: path.stat().st_ino for file, path in files_of(disk.root).items() if ".parts/" not in file}


@pytest.mark.parametrize("shortfall", [40, 5000])
def test_a_shortfall_of_a_few_bytes_is_noticed(disk: Disk, shortfall: int) -> None:
    publish(disk.root / "old.bin", b"some bytes", kind="thing", rows=1)
    free = os.statvfs(disk.root).f_bavail * os.statvfs(disk.root).f_bsize
    before = contents(disk.root)
    with pytest.raises(JointspaceError, match="big.bin.*Free some disk space"):
        publish(disk.root / "big.bin", b"x" * (free + shortfall), kind="thing", rows=1)
    assert contents(disk.root) == before

"""Every kind of writer on a disk that is too small: one sentence, nothing half-written, the old artefact as it was.

The least that such a disk can be short of is one page. That a shortfall of 40 bytes is noticed too is tested on
`publish` in tests/storage/test_files.py.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from disks import Disk, contents, files_of, pages, same
from writers import ONE_BY_ONE, RESUMED, WITHOUT_LOCK, WRITERS

from pipeline.errors import JointspaceError
from pipeline.storage.parameters import Checkpoints


def refusal(write: Callable[[], None], disk: Disk) -> None:
    """That `write` fails in the one sentence that it should."""
    with pytest.raises(JointspaceError) as caught:
        write()
    assert caught.value.exit_code == 1 and re.match(disk.refusal(), str(caught.value)), caught.value


@pytest.mark.parametrize(
    "short", ["one page", *(pytest.param(s, marks=pytest.mark.slow) for s in ("half", "everything"))]
)
@pytest.mark.parametrize("name", WRITERS)
def test_a_new_artefact(name: str, short: str, disk: Disk, finished: Path, collection: Path, tmp_path: Path) -> None:
    (elsewhere := tmp_path / "afar").mkdir()  # as long a name as the disk's
    WRITERS[name](elsewhere, finished, collection)
    whole = contents(elsewhere)
    need = pages(list(files_of(elsewhere).values())) + (name not in WITHOUT_LOCK)
    spare = int(name == "build_index")  # its measured times may have other lengths
    disk.leave({"one page": need - 1 - spare, "half": need // 2, "everything": 0}[short])

    refusal(lambda: WRITERS[name](disk.root, finished, collection), disk)

    left = disk.files()
    assert not any(part.startswith(".") for path in left for part in path.split("/") if path != "demo/.jointspace-demo")
    if name in ONE_BY_ONE:
        assert all(same(data, whole[file]) for file, data in contents(disk.root).items() if file in whole)
        assert not {file for file in left if file not in whole and ".parts/" not in file}
    else:
        assert not [file for file in left if ".parts/" not in file]
        parts = 2 * (name == "ingest" and short == "everything")  # pages; of a short one they are there already
        disk.leave(need + spare + parts)  # exactly enough: it was short by a page, and no more
    if name in ONE_BY_ONE:
        disk.ballast.unlink()
    WRITERS[name](disk.root, finished, collection)
    assert disk.files().keys() == whole.keys()
    found = contents(disk.root)
    assert all(same(found[file], data) for file, data in whole.items())


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

    left = {file: path for file, path in disk.files().items() if ".parts/" not in file or file in before}
    assert {file: path.stat().st_ino for file, path in left.items()} == before
    assert {file: path.read_bytes() for file, path in left.items()} == data
    if name == "checkpoint":
        assert Checkpoints(disk.root / "checkpoints", "f", 0).latest().settings == {"step": 1}
    disk.ballast.unlink()
    WRITERS[name](disk.root, finished, collection)

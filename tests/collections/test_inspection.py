"""Tests that `ingest`, after it was killed, does not inspect unchanged images of finished blocks again."""

import contextlib
import os
from functools import partial
from pathlib import Path

import pytest

from pipeline.collections import inspection
from pipeline.collections.inspection import InspectedImages, clear
from pipeline.compute.workers import Failure
from pipeline.errors import InputError
from pipeline.images.decode import Inspection

NAMES = [f"{number}.jpg" for number in range(10)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(inspection, "BLOCK_IMAGES", 4)
    for name in NAMES:
        (tmp_path / name).write_text(name)


def outcome(name: str) -> Inspection | Failure:
    return Failure("truncated: it ends early") if name == "5.jpg" else Inspection(int(name[0]), 9, "0" * 64, [])


def state(folder: Path, name: str) -> str:
    return str((folder / name).stat().st_mtime_ns)


def run(folder: Path, dies_at: str = "", limits: str = "large", names: list[str] = NAMES) -> tuple[list, list[str]]:
    """Inspect the images `names` as `ingest` does, until the inspection of the image `dies_at` interrupts the run.

    Return the outcomes of this run, and the names of the images that it has inspected and not read from stored blocks.
    """
    looked = []

    def look(location: tuple) -> Inspection:
        path, *_ = location
        if path == dies_at:
            raise KeyboardInterrupt
        looked.append(path)
        if isinstance(said := outcome(path), Failure):
            raise InputError(said.reason)
        return said

    blocks = InspectedImages(folder / "manifest.parts", partial(state, folder), limits)
    found = []
    with contextlib.suppress(KeyboardInterrupt):
        found += blocks.resume(lambda: ((name, None, None) for name in names), look, Inspection._make, 0)
    return found, looked


def test_images_of_finished_blocks_are_not_inspected_again(tmp_path: Path) -> None:
    run(tmp_path, dies_at="6.jpg")
    found, looked = run(tmp_path)
    assert found == list(map(outcome, NAMES)) and looked == NAMES[4:]
    assert run(tmp_path) == (found, [])


def test_a_block_with_a_changed_image_is_inspected_again(tmp_path: Path) -> None:
    found, _ = run(tmp_path)
    os.utime(tmp_path / "1.jpg", (1, 1))
    assert run(tmp_path) == (found, NAMES[:4])
    (tmp_path / "manifest.parts/00002.json").write_text("{")
    assert run(tmp_path) == (found, NAMES[8:])
    assert run(tmp_path, limits="small") == (found, NAMES)
    assert run(tmp_path, names=NAMES[:4] + NAMES[5:], limits="small")[1] == NAMES[5:]


def test_stored_inspections_are_removed_and_files_of_the_user_stay(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "manifest.parts/mine.txt").touch()
    clear(tmp_path / "manifest.parts")
    assert [path.name for path in (tmp_path / "manifest.parts").iterdir()] == ["mine.txt"]

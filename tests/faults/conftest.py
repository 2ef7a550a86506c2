"""Fixtures for the fault tests: a small collection, a finished run of it, and a disk that can be filled."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_run
from disks import Disk, mount_disk


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the collection of `tiny_run` and return its folder."""
    root = tmp_path_factory.mktemp("faults") / "data"
    tiny_run.make_collection(root)
    return root


@pytest.fixture(scope="session")
def finished(collection: Path) -> Path:
    """Return the folder of a finished run of the collection. Tests must not write to it."""
    run = collection.parent / "run"
    tiny_run.make_run(collection, run)
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of the finished run that a test may damage. The copy also has shards of the kinds that only slow
    stages make."""
    copy = shutil.copytree(finished, tmp_path / "run")
    tiny_run.add_other_kinds(copy, copy)
    return copy


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Provide an empty file system of 32 MiB that a test can fill. The test is skipped if the file system cannot be
    mounted on this machine."""
    yield from mount_disk(tmp_path / "disk")

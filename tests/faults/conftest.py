"""One tiny run for all tests of faults."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_run
from disks import Disk, mounted


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("faults") / "data"
    tiny_run.make_collection(root)
    return root


@pytest.fixture(scope="session")
def finished(collection: Path) -> Path:
    """The undisturbed run; never to be written to."""
    run = collection.parent / "run"
    tiny_run.make_run(collection, run)
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it to be spoilt, with a shard of each kind that the fast commands do not make."""
    copy = shutil.copytree(finished, tmp_path / "run")
    tiny_run.add_other_kinds(copy, copy)
    return copy


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    yield from mounted(tmp_path / "disk")

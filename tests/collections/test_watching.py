"""What tells that a collection has changed, without opening its files."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.collections.inventory import describe_state


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def edit(path: Path) -> None:
    """Other bytes, as many as before, written later."""
    time = path.stat().st_mtime_ns
    path.write_bytes(bytes(path.stat().st_size))
    os.utime(path, ns=(time + 1_000_000, time + 1_000_000))


CHANGES: dict[str, Callable[[Path], None]] = {
    "an edited image": lambda root: edit(root / "images/a.jpg"),
    "a deleted image": lambda root: (root / "images/a.jpg").unlink(),
    "a new image": lambda root: touch(root, "images/deep/c.png"),
    "a renamed image": lambda root: (root / "images/a.jpg").rename(root / "images/z.jpg"),
    "an image behind a linked folder": lambda root: edit(root / "linked/d.jpg"),
    "an edited list": lambda root: edit(root / "captions.tsv"),
    "a deleted list": lambda root: (root / "captions.tsv").unlink(),
    "a list put back to an older one": lambda root: os.utime(root / "captions.tsv", (0, 0)),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    touch(
        root, "images/a.jpg", "images/b.jpg", "images/a.txt", "captions.tsv", "x/00000.tar", "README", ".hidden/e.jpg"
    )
    touch(tmp_path, "elsewhere/d.jpg")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    return root


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_folder_is_seen(root: Path, change: str) -> None:
    before = describe_state(root, "folder", {})
    assert describe_state(root, "folder", {}) == before and before.startswith("4 files, ")
    CHANGES[change](root)
    assert describe_state(root, "folder", {}) != before


@pytest.mark.parametrize(
    ("form", "seen"), [("folder", set()), ("text-files", {"images/a.txt"}), ("webdataset", {"x/00000.tar"})]
)
def test_only_what_the_format_reads_counts(root: Path, form: str, seen: set[str]) -> None:
    for name in ("images/a.txt", "x/00000.tar", "README", ".hidden/e.jpg"):
        before = describe_state(root, form, {})
        edit(root / name)
        assert (describe_state(root, form, {}) != before) == (name in seen), name

"""What tells that a collection has changed, without opening its files."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.collections.formats import FORMATS, NAMED
from pipeline.collections.watching import describe_state, list_files
from pipeline.errors import UsageError


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


LISTS = {
    "folder": (["captions.tsv", "splits.tsv", "weak.tsv", "boxes.tsv"], {}),
    "flickr-token": (["Flickr8k_text/Flickr8k.token.txt", "Flickr8k_text/Flickr_8k.devImages.txt"], {}),
    "karpathy": (["dataset_coco.json"], {}),
    "pascal1k": (["index.html"], {}),
    "coco": (["annotations/captions_train2014.json", "annotations/captions_val2014.json"], {}),
    "table": (["lists/mine.csv"], {"table": "lists/mine.csv"}),
    "text-files": ([], {}),
    "webdataset": ([], {}),
    "parquet": ([], {}),
}


@pytest.mark.parametrize("form", FORMATS)
def test_the_lists_of_a_format_are_found_wherever_they_lie(form: str, tmp_path: Path) -> None:
    names, given = LISTS[form]
    touch(tmp_path, *names, "images/a.jpg", "notes.md", "other.json")
    assert {path.relative_to(tmp_path).as_posix() for path in list_files(tmp_path, form, given)} == set(names)


def test_formats_with_lists_are_those_whose_readers_name_files() -> None:
    named = {form for form, read in FORMATS.items() if form in NAMED}
    assert named == FORMATS.keys() - {"text-files", "webdataset", "parquet"}


def test_what_the_reader_refuses_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a.csv", "b.csv")
    with pytest.raises(UsageError, match="several files"):
        list_files(tmp_path, "table", {})
    with pytest.raises(UsageError, match="/absolute/.* must be a pattern under"):
        describe_state(tmp_path, "webdataset", {"train": "/absolute/*.tar"})


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


def test_shards_of_other_names_count_where_a_pattern_names_them(root: Path) -> None:
    touch(root, "x/part.wds")
    before = describe_state(root, "webdataset", {"train": "x/*.wds"})
    edit(root / "x/part.wds")
    assert describe_state(root, "webdataset", {"train": "x/*.wds"}) != before


def test_a_dangling_link_is_no_failure(root: Path) -> None:
    (root / "images/gone.jpg").symlink_to(root / "nowhere.jpg")
    assert describe_state(root, "folder", {}).startswith("5 files, ")

"""Tests that pipes, devices, sockets, folders and links in place of a collection's files are not read or waited for."""

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_formats import write_tar

from pipeline.collections.files import CollectionFolder
from pipeline.collections.records import Options
from pipeline.errors import InputError

LISTS = {
    "captions.tsv": ("folder", {}),
    "splits.tsv": ("folder", {}),
    "weak.tsv": ("folder", {}),
    "boxes.tsv": ("folder", {}),
    "Flickr8k.token.txt": ("flickr-token", {}),
    "dataset.json": ("karpathy", {}),
    "captions_train.json": ("coco", {}),
    "t.csv": ("table", {"table": "t.csv"}),
    "t.tsv": ("table", {"table": "t.tsv"}),
    "t.jsonl": ("table", {"table": "t.jsonl"}),
    "t.parquet": ("table", {"table": "t.parquet"}),
}
ODD = {
    "pipe": "it is a pipe, but must be a regular file",
    "socket": "it is a socket, but must be a regular file",
    "folder": "it is a folder, but must be a regular file",
    "link to a device": "leads out of the collection. Set collection.follow_links to true",
    "link to /etc/passwd": "leads out of the collection. Set collection.follow_links to true",
    "sparse": "17179869184 bytes, but only ",
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Callable[[str, Path], None]]:
    """Return a function that puts a file of an odd kind, such as a pipe or a socket, at a path. A reader that waits for
    a writer of the pipe is released after 20 seconds."""
    timers = []

    def put(kind: str, path: Path) -> None:
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
            timers.append(threading.Timer(20, lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))))
            timers[-1].start()
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as one, pytest.MonkeyPatch.context() as patch:
                patch.chdir(path.parent)  # The path of a socket must be short.
                one.bind(path.name)
        elif kind == "folder":
            path.mkdir()
        elif kind == "sparse":
            path.touch()
            os.truncate(path, 1 << 34)
        else:
            path.symlink_to("/dev/zero" if kind == "link to a device" else "/etc/passwd")

    yield put
    for timer in timers:
        timer.cancel()


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "pipe") for name in LISTS), *(("captions.tsv", kind) for kind in ODD)]
)
def test_an_odd_list_is_refused_by_name(name: str, kind: str, collection: Path, place, gather) -> None:
    place(kind, collection / name)
    form, named = LISTS[name]
    with pytest.raises(InputError, match=rf"{name} cannot be read .*{ODD[kind]}"):
        gather(collection, form, files=named)


def test_an_odd_text_or_shard_costs_itself(tmp_path: Path, place, photograph, gather) -> None:
    fates = {kind: "outside" if "link" in kind else "unreadable" for kind in ODD if kind != "sparse"}
    for number, kind in enumerate(fates):
        (tmp_path / f"{number}.jpg").write_bytes(photograph(number))
        for suffix in ("txt", "tar"):
            place(kind, tmp_path / f"{number}.{suffix}")
    (tmp_path / "a.jpg").write_bytes(photograph(8))
    (tmp_path / "a.txt").write_text("A dog .\n")
    write_tar(tmp_path / "a.tar", {"9.jpg": photograph(9), "9.txt": b"A dog ."})
    for form, what, suffix in (("text-files", "sentences", "txt"), ("webdataset", "images", "tar")):
        result = gather(tmp_path, form)
        rejects = {file: reason.partition(":")[0] for file, _, reason in result.rejected(what)}
        expected = {f"{number}.{suffix}": fate for number, fate in enumerate(fates.values())}
        # A folder whose name ends with .txt is not a text file, so the format text-files does not reject it.
        if form == "text-files":
            expected.pop(f"{[*fates].index('folder')}.txt")
        assert rejects == expected
        assert result.tables["sentences"]["text"].to_pylist() == ["A dog ."]
        result.check_counts()


def test_links_are_followed_if_the_configuration_allows_it(tmp_path: Path, photograph, gather) -> None:
    root = tmp_path / "data"
    elsewhere = tmp_path / "elsewhere"
    for folder in (root, elsewhere):
        folder.mkdir()
    (elsewhere / "a.jpg").write_bytes(photograph(1))
    (elsewhere / "a.txt").write_text("A dog .\n")
    for name in ("a.jpg", "a.txt"):
        (root / name).symlink_to(elsewhere / name)
    (root / "loop.jpg").symlink_to("loop.jpg")
    refused, followed = (gather(root, "text-files", follow_links=follow) for follow in (False, True))
    assert {reason.partition(":")[0] for what in ("images", "sentences") for *_, reason in refused.rejected(what)} == {
        "outside", "unreadable",
    }  # fmt: skip
    assert refused.tables["images"].num_rows == refused.tables["sentences"].num_rows == 0
    (root / "disk").symlink_to(elsewhere)
    (root / "again").symlink_to(root)
    assert gather(root, "text-files").tables["images"]["path"].to_pylist() == ["disk/a.jpg"]
    assert len(list(CollectionFolder(root, Options({}, {}, "train")).files())) > 3
    assert followed.tables["images"]["path"].to_pylist() == ["a.jpg"]
    assert followed.tables["sentences"]["text"].to_pylist() == ["A dog ."]


def test_link_to_another_folder_of_the_collection_is_rejected(tmp_path: Path, photograph, gather) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "b/.hidden.jpg").write_bytes(photograph(1))
    (tmp_path / "a/link.jpg").symlink_to("../b/.hidden.jpg")
    (tmp_path / "b/link.jpg").symlink_to(".hidden.jpg")
    result = gather(tmp_path, "text-files")
    ((name, *_, reason),) = result.rejected("images")
    assert name == "a/link.jpg" and reason.startswith("outside: a link leads out of the folder a. Set collection.")
    assert result.tables["images"]["path"].to_pylist() == ["b/link.jpg"]


def test_a_folder_that_cannot_be_read_is_named_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks the message for a folder that this user may not read. The refusal of the system is imitated, because the
    tests may run as root, who can read every folder."""

    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    folder = CollectionFolder(tmp_path, Options({}, {}, "gallery"))
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(InputError, match=r"/inside cannot be read \(Permission denied\)\. Allow this user to read it"):
        list(folder.walk(tmp_path / "inside"))

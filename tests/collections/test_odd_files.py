"""Pipes, devices, sockets, folders and links in the places of a collection's files: never waited for, never read."""

import ast
import csv
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from made_up import ingest
from outcomes import check_counts, found
from test_formats import write_tar

from pipeline import plain_files
from pipeline.collections import formats
from pipeline.collections.formats import files, lists, rows
from pipeline.errors import InputError
from pipeline.storage.sources import ImageSource

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
    "pipe": "not a regular file but a pipe",
    "socket": "not a regular file",
    "folder": "not a regular file but a folder",
    "link to a device": "leads out of the collection .collection.follow_links.",
    "link to /etc/passwd": "leads out of the collection .collection.follow_links.",
    "sparse": "17179869184 bytes, more than ",
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Callable[[str, Path], None]]:
    """Puts something odd at a path. A reader of a pipe that waits for a writer is released after a while."""
    timers = []

    def put(kind: str, path: Path) -> None:
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
            timers.append(threading.Timer(20, lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))))
            timers[-1].start()
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as one, pytest.MonkeyPatch.context() as patch:
                patch.chdir(path.parent)  # a socket's path is short
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


@pytest.mark.parametrize("kind", [kind for kind in ODD if kind != "sparse"])
@pytest.mark.parametrize("name", LISTS)
def test_an_odd_list_is_refused_by_name(name: str, kind: str, collection: Path, place, gather) -> None:
    place(kind, collection / name)
    form, named = LISTS[name]
    with pytest.raises(InputError, match=rf"{name} cannot be read: .*{ODD[kind]}"):
        gather(collection, form, files=named)


@pytest.mark.parametrize("kind", [kind for kind in ODD if kind != "sparse"])
def test_an_odd_text_costs_itself(kind: str, tmp_path: Path, place, photograph, gather) -> None:
    for number, name in enumerate("ab"):
        (tmp_path / f"{name}.jpg").write_bytes(photograph(number))
        (tmp_path / f"{name}.txt").write_text("A dog .\n")
    place(kind, tmp_path / "b.txt")
    result = gather(tmp_path, "text-files")
    if kind == "folder":  # which is no text, whatever its name
        assert found(result, "sentences") == []
    else:
        ((file, _, reason),) = found(result, "sentences")
        assert file == "b.txt" and reason.startswith(("unreadable: ", "outside: "))
    assert result.tables["sentences"]["text"].to_pylist() == ["A dog ."]
    check_counts(result)


@pytest.mark.parametrize("kind", [kind for kind in ODD if kind != "sparse"])
def test_an_odd_shard_costs_itself(kind: str, tmp_path: Path, place, photograph, gather) -> None:
    write_tar(tmp_path / "1.tar", {"9.jpg": photograph(9), "9.txt": b"A cat ."})
    place(kind, tmp_path / "0.tar")
    result = gather(tmp_path, "webdataset")
    ((file, _, reason),) = found(result, "images")
    assert file == "0.tar" and reason.startswith(("unreadable: ", "outside: "))
    assert result.tables["sentences"]["text"].to_pylist() == ["A cat ."]
    check_counts(result)


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = csv.field_size_limit()
    for module in (plain_files, rows):
        monkeypatch.setattr(module, "LONGEST_LINE", 40)
    monkeypatch.setattr(plain_files, "CHUNK", 16)
    yield
    csv.field_size_limit(before)


@pytest.mark.usefixtures("short_lines")
def test_a_line_without_end_is_not_read(collection: Path, gather) -> None:
    text = (collection / "captions.tsv").read_text()
    (collection / "captions.tsv").write_text(text + "a.jpg\t1\t" + "x" * 80 + "\n")
    with pytest.raises(InputError, match=r"captions\.tsv: line 4 has more than 40 bytes"):
        gather(collection)
    (collection / "t.csv").write_text('file,sentence\na.jpg,"' + "x\n" * 40 + '"\n')
    with pytest.raises(InputError, match=r"t\.csv: the quotation mark opened in row 2 is never closed"):
        gather(collection, "table", files={"table": "t.csv"})
    (collection / "t.csv").write_text("file,sentence\na.jpg," + "x" * 80 + "\n")
    with pytest.raises(InputError, match=r"t\.csv: line 2 has more than 40 bytes"):
        gather(collection, "table", files={"table": "t.csv"})


def test_a_list_beyond_all_measure_is_not_read(collection: Path, place, gather) -> None:
    place("sparse", collection / "dataset.json")
    with pytest.raises(InputError, match=rf"dataset\.json cannot be read: {ODD['sparse']}{lists.LARGEST_JSON}"):
        gather(collection, "karpathy")
    place("sparse", collection / "captions.tsv")
    with pytest.raises(InputError, match=rf"captions\.tsv cannot be read: {ODD['sparse']}{files.LARGEST_LIST}"):
        gather(collection)


def test_links_are_followed_where_the_configuration_says_so(tmp_path: Path, photograph, gather) -> None:
    root, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    for folder in (root, elsewhere):
        folder.mkdir()
    (elsewhere / "a.jpg").write_bytes(photograph(1))
    (elsewhere / "a.txt").write_text("A dog .\n")
    for name in ("a.jpg", "a.txt"):
        (root / name).symlink_to(elsewhere / name)
    (root / "loop.jpg").symlink_to("loop.jpg")
    refused, followed = (gather(root, "text-files", follow_links=follow) for follow in (False, True))
    assert {reason.partition(":")[0] for what in ("images", "sentences") for *_, reason in found(refused, what)} == {
        "outside", "unreadable",
    }  # fmt: skip
    assert refused.tables["images"].num_rows == refused.tables["sentences"].num_rows == 0
    assert followed.tables["images"]["path"].to_pylist() == ["a.jpg"]
    assert followed.tables["sentences"]["text"].to_pylist() == ["A dog ."]


def test_links_that_stay_within_are_followed(collection: Path, tmp_path_factory, gather) -> None:
    """A list that is a link to its neighbour, and a root that is a link itself."""
    (collection / "captions.tsv").rename(collection / "old.tsv")
    (collection / "captions.tsv").symlink_to("old.tsv")
    root = tmp_path_factory.mktemp("links") / "data"
    root.symlink_to(collection)
    result = gather(root)
    assert result.rejects == [] and result.counts["sentences"]["kept"] == 3


def test_a_list_that_the_configuration_names_may_lie_elsewhere(collection: Path, tmp_path_factory, gather) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "mine.tsv"
    (collection / "captions.tsv").rename(elsewhere)
    assert gather(collection, files={"captions": str(elsewhere)}).counts["sentences"]["kept"] == 3


def test_the_command_follows_links_by_the_configuration(collection: Path, tmp_path: Path, photograph) -> None:
    (tmp_path / "elsewhere.jpg").write_bytes(photograph(9))
    data = tmp_path / "data"
    data.mkdir()
    for name in ("images", "captions.tsv", "splits.tsv"):
        (collection / name).rename(data / name)
    (data / "images" / "b.jpg").unlink()
    (data / "images" / "b.jpg").symlink_to(tmp_path / "elsewhere.jpg")
    ingest(tmp_path, data, {"collection": {"follow_links": True}})
    assert '"kept": 3' in (tmp_path / "manifest" / "manifest.json").read_text()


def test_a_name_never_leads_out(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "x.jpg").write_bytes(b"secret")
    for name in ("../x.jpg", str(tmp_path / "x.jpg")):
        with pytest.raises(InputError, match="^outside"):
            ImageSource(tmp_path / "root", follow_links=True).read(name)


@pytest.mark.parametrize("path", sorted(Path(formats.__file__).parent.glob("*.py")), ids=lambda path: path.name)
def test_only_the_folder_opens_files(path: Path) -> None:
    calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    opening = {
        call for call in calls if call.split(".")[-1] in ("open", "fdopen", "read_text", "read_bytes", "open_plain")
    }
    own = {"os.fdopen", "open_plain", "self._scratch.open"} if path.name == "files.py" else {"folder.open"}
    assert opening <= own | {"self.open"}

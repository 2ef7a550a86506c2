"""The one place that opens artefacts: what is no file is refused at once, and every failure is a sentence."""

import os
import socket
from pathlib import Path

import pytest

from pipeline.errors import IntegrityError, JointspaceError
from pipeline.storage.batch import FileBatch
from pipeline.storage.files import file_sha256, open_regular, read_bytes, walk


def test_the_bytes_of_a_file_or_of_what_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("x")
    assert read_bytes(tmp_path / "x") == read_bytes(tmp_path / "link") == b"abc"
    assert file_sha256(tmp_path / "x").startswith("ba7816bf")


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)  # the name of a socket is short
        listener.bind(path.name)


ODD = {
    "a folder": (Path.mkdir, "it is a folder, not a file"),
    "a pipe": (os.mkfifo, "it is a pipe, not a file"),
    "a socket": (bind, "cannot read"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a file"),
    "a circle": (lambda path: path.symlink_to(path), "links lead in a circle"),
    "nothing": (lambda path: None, "does not exist; run the stage that makes it"),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), "does not exist"),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_file_is_refused_at_once(odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, said = ODD[odd]
    make(tmp_path / "x")
    with pytest.raises(IntegrityError, match=f"{tmp_path}/x.*{said}|{said}.*"):
        read_bytes(tmp_path / "x")
    with pytest.raises(OSError):
        open_regular(tmp_path / "x")


def test_a_walk_names_everything_that_is_no_folder_and_follows_nothing(tmp_path: Path) -> None:
    for name in ("b/c/d", "a", ".hidden/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "b/up").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "b/pipe")
    found = [path.relative_to(tmp_path).as_posix() for path, _ in walk(tmp_path)]
    assert found == ["a", ".hidden/x", "b/pipe", "b/up", "b/c/d"]


def test_a_folder_in_the_place_of_what_is_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    batch = FileBatch()
    batch.add(tmp_path / "x", b"1")
    batch.add(tmp_path / "x.json", b"2", commit=True)
    with pytest.raises(JointspaceError, match=r"cannot write .*x\.json \(Is a directory\); move away what is there"):
        batch.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]

"""Images are read from files and from tar shards, and from nowhere else."""

import io
import pickle
import tarfile
from pathlib import Path

import pytest

from pipeline.errors import InputError
from pipeline.storage import sources
from pipeline.storage.sources import ImageSource


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "-ü.jpg").write_bytes(b"pixels")
    source = pickle.loads(pickle.dumps(ImageSource(tmp_path)))
    assert source.read("a b/-ü.jpg") == b"pixels"


def test_members_in_place(tmp_path: Path) -> None:
    contents = {f"{n}.jpg": bytes([n]) * (1000 + n) for n in range(3)}
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for name, data in contents.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    with tarfile.open(tmp_path / "0.tar") as tar:
        places = {member.name: (member.offset_data, member.size) for member in tar}
    source = ImageSource(tmp_path)
    assert {name: source.read("0.tar", *place) for name, place in places.items()} == contents
    with pytest.raises(InputError, match=r"truncated: 0\.tar ends before byte 99999999"):
        source.read("0.tar", 99_999_000, 999)


@pytest.mark.parametrize("name", ["../x.jpg", "a/../../x.jpg", "/etc/hostname", "out.jpg", "a/out.jpg"])
def test_nothing_outside(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_bytes(b"secret")
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    for link in (root / "out.jpg", root / "a" / "out.jpg"):
        link.symlink_to(tmp_path / "x.jpg")
    with pytest.raises(InputError, match="^outside"):
        ImageSource(root).read(name)


def test_what_is_no_file_or_far_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ImageSource(tmp_path)
    with pytest.raises(InputError, match=r"^missing: there is no file x\.jpg"):
        source.read("x.jpg")
    (tmp_path / "folder.jpg").mkdir()
    with pytest.raises(InputError, match="^unreadable"):
        source.read("folder.jpg")
    (tmp_path / "film.jpg").write_bytes(bytes(11))
    monkeypatch.setattr(sources, "LARGEST_FILE", 10)
    with pytest.raises(InputError, match="^too-large: 11 bytes, more than 10"):
        source.read("film.jpg")

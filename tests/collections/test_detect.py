"""Which format a folder or file is in, told without being asked."""

from pathlib import Path

import pytest

from pipeline.collections.detect import detect
from pipeline.errors import JointspaceError, UsageError


@pytest.fixture
def make(tmp_path: Path, photograph):
    def write(*names: str) -> Path:
        for number, name in enumerate(names):
            path = tmp_path / "c" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(photograph(number) if name.endswith(".jpg") else b"")
        return tmp_path / "c"

    return write


@pytest.mark.parametrize(
    ("names", "format", "files"),
    [
        (["a.jpg", "2021/b.jpg"], "folder", {}),
        (["images/a.jpg", "captions.tsv"], "folder", {}),
        (["images/a.jpg", "weak.tsv", "notes.csv"], "folder", {}),
        (["images/a.jpg", "b.jpg"], "folder", {"images": "."}),
        (["a.jpg", "README.txt", "things.json"], "folder", {}),
        (["a.jpg", "metadata.csv"], "folder", {}),
        (["a.jpg", "a.txt"], "text-files", {}),
        (["one/0.tar", "1.tar"], "webdataset", {}),
        (["images/a.jpg", "dataset_flickr8k.json"], "karpathy", {}),
        (["images/a.jpg", "annotations/captions_val2014.json"], "coco", {}),
        (["images/a.jpg", "Flickr8k.token.txt"], "flickr-token", {}),
    ],
)
def test_a_folder(make, names: list[str], format: str, files: dict) -> None:
    folder = make(*names)
    if (folder / "metadata.csv").exists():
        (folder / "metadata.csv").write_text("file,price\na.jpg,3\n")
    found = detect(folder)
    assert (found.format, found.files, found.columns) == (format, files, {})


def test_what_is_no_collection_is_refused_in_a_sentence(make, tmp_path: Path) -> None:
    folder = make("notes.txt", "photo.jpg", "empty.csv")
    (folder / "broken.parquet").write_bytes(b"PAR1 no")
    (folder / "prices.csv").write_text("sku,price\n1,2\n")
    for name in ("notes.txt", "photo.jpg", "nowhere", "empty.csv", "broken.parquet", "prices.csv"):
        with pytest.raises(JointspaceError, match=name):
            detect(folder / name)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UsageError, match="nothing holds no photos and no tar shard"):
        detect(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("\ufeffFilename;Caption\r\na.jpg;a dog, a cat\r\n", {"file": "Filename", "sentence": "Caption"}),
        ('\ufeff"Filename";"Say, what?";Caption\na.jpg;x;a dog\n', {"file": "Filename", "sentence": "Caption"}),
        ("file\tcaption\na.jpg\ta dog; a cat\n", {"sentence": "caption"}),
        ("file, caption\na.jpg, a dog\n", {"sentence": "caption"}),
        ("image_name| comment_number| comment\na.jpg| 0| a dog\n", {"file": "image_name", "sentence": "comment"}),
        (
            "Datei;Fotograf;Beschreibung\na.jpg;Ida Müller;Ein Hund am Strand\n",
            {"file": "Datei", "sentence": "Beschreibung"},
        ),
        ("文件,作者,说明\na.jpg,李,一个男人在海滩上跑步\n", {"file": "文件", "sentence": "说明"}),
        ("文件,作者\na.jpg,李明\n", {"file": "文件"}),
    ],
)
def test_a_table_of_a_spreadsheet(make, text: str, columns: dict) -> None:
    folder = make("a.jpg")
    (folder / "list.csv").write_text(text, newline="")
    found = detect(folder)
    assert (found.format, found.columns) == ("table", columns)
    assert all(name in found.notes[0] for name in ("list.csv", *columns.values()))

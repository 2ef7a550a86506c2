"""Tests of the detection of the format of a folder or file."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.collections.detect import NO_OPTIONS, Survey, detect, recognise
from pipeline.collections.files import CollectionFolder
from pipeline.collections.formats import FORMATS, describe_state, rows
from pipeline.collections.records import ImageRecord, Options, SentenceRecord
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
        (["a.jpg", "dataset_infos.json"], "folder", {}),
        (["a.jpg", "a.txt"], "text-files", {}),
        (["a.jpg", "a.jpg.txt"], "text-files", {}),
        (["x/a.jpg", "x/a.jpg.supplemental-meta.json", "x/metadata.json"], "text-files", {}),
        (["a(1).jpg", "a.jpg(1).json"], "text-files", {}),
        (["a.jpg", "a.json", "b.jpg.json"], "folder", {}),
        (["one/0.tar", "1.tar"], "webdataset", {}),
        (
            ["x/c-train-0.tar", "x/c-train-1.tar", "x/c-val-0.tar"],
            "webdataset",
            {"train": "x/c-train-*.tar", "dev": "x/c-val-*.tar"},
        ),
        (
            ["train/c-val-0.tar", "train/test-0.tar"],
            "webdataset",
            {"dev": "train/c-val-*.tar", "test": "train/test-*.tar"},
        ),
        (["c-train-0.tar", "c-train-1.tar"], "webdataset", {}),
        (["a-train-0.tar", "b-train-0.tar", "c-val-0.tar"], "webdataset", {}),
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


def test_a_folder_that_is_not_a_collection_is_refused_with_a_reason(make, tmp_path: Path) -> None:
    folder = make("notes.txt", "photo.jpg", "empty.csv")
    (folder / "broken.parquet").write_bytes(b"PAR1 no")
    (folder / "prices.csv").write_text("sku,price\n1,2\n")
    (folder / "prices.json").write_text('{"sku": 1}')
    for name in ("notes.txt", "photo.jpg", "nowhere", "empty.csv", "broken.parquet", "prices.csv", "prices.json"):
        with pytest.raises(JointspaceError, match=name):
            detect(folder / name)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UsageError, match="nothing contains no photos, and no tar shard"):
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


COCO = json.dumps(
    {"images": [{"id": 7, "file_name": "0.jpg"}], "annotations": [{"image_id": 7, "caption": one} for one in "ab"]}
)
HUB = {
    "train/metadata.jsonl": '{"file_name": "0.jpg", "text": "a"}\n',
    "test/metadata.jsonl": '{"file_name": "0.jpg", "text": "b"}\n',
}


@pytest.mark.parametrize(
    ("tables", "splits"),
    [
        ({"captions.txt": "image,caption\nx/0.jpg,a\nx/0.jpg,b\n"}, {"x/0.jpg": "divided"}),  # Flickr8k at Kaggle
        ({"captions.tsv": "file\tcaption\n0.jpg\ta\n0.jpg\tb\n"}, {"x/0.jpg": "divided"}),
        ({"captions.tsv": "x/0.jpg\ta\nx/0.jpg\tb\n"}, {"x/0.jpg": "divided"}),
        ({"list.json": '[{"image": "x/0.jpg", "caption": ["a", "b"]}]'}, {"x/0.jpg": "divided"}),
        (
            {"train.csv": "file,text\nx/0.jpg,a\n", "val.csv": "file,text\nx/1.jpg,b\n"},
            {"x/0.jpg": "divided", "x/1.jpg": "dev"},
        ),
        (HUB, {"train/0.jpg": "divided", "test/0.jpg": "test"}),
        ({"list.json": '{"x/0.jpg": ["a", "b"]}'}, {"x/0.jpg": "divided"}),
        ({"list.csv": "image,caption_1,year,caption_2\nx/0.jpg,a,2020,b\n"}, {"x/0.jpg": "divided"}),
        ({"list.csv": "Bild,Text 1,Text 2\nx/0.jpg,a,b\n"}, {"x/0.jpg": "divided"}),
        (
            {"list.csv": "image,caption,Subset\nx/0.jpg,a,Training\nx/1.jpg,b,TST\n"},
            {"x/0.jpg": "train", "x/1.jpg": "test"},
        ),
        (
            {"list.csv": "image,caption,part\nx/0.jpg,a,Unlabelled\nx/1.jpg,b,trn\n"},
            {"x/0.jpg": "gallery", "x/1.jpg": "train"},
        ),
        (
            {"list.csv": "image,caption,by\nx/0.jpg,a,train\nx/1.jpg,b,train\n"},
            {"x/0.jpg": "divided", "x/1.jpg": "divided"},
        ),
        (
            {"list.csv": "image,caption,for\nx/0.jpg,a,train\nx/1.jpg,b,play\n"},
            {"x/0.jpg": "divided", "x/1.jpg": "divided"},
        ),
        ({"list.jsonl": '{"file": "0.jpg", "caption": "a", "caption.1": "b"}\n'}, {"x/0.jpg": "divided"}),
        (
            {"list.json": '{"file": "0.jpg", "caption1": "a"}\n{"file": "1.jpg", "caption2": "b"}\n'},
            {"0.jpg": "divided", "1.jpg": "divided"},
        ),
        (
            {"list.json": '{"data": [{"file": "0.jpg", "sentences": [{"raw": "a"}, {"raw": "b"}]}], "version": 1}'},
            {"x/0.jpg": "divided"},
        ),
        (
            {"list.json": '{"0.jpg": {"caption": "a"}, "1.jpg": {"caption": "b"}}'},
            {"0.jpg": "divided", "1.jpg": "divided"},
        ),
        ({"mine.json": COCO}, {"x/0.jpg": "divided"}),
        ({"captions_val2014.json": COCO}, {"x/0.jpg": "divided"}),
        (
            {"a/mine_train.json": COCO, "a/val.json": '{"images": [], "annotations": [{"caption": ""}]}'},
            {"x/0.jpg": "train"},
        ),
    ],
)
def test_lists_of_public_datasets_are_read(make, tables: dict[str, str], splits: dict[str, str]) -> None:
    folder = make(*splits, *tables)
    for name, text in tables.items():
        (folder / name).write_text(text)
    found = detect(folder)
    records = list(FORMATS[found.format](found.root, Options(found.files, found.columns, "divided")))
    listed = {record.path: record.split for record in records if isinstance(record, ImageRecord) and record.row}
    assert listed == splits
    assert all(detect(folder / name) == found for name in tables if name == "mine.json")
    assert not any(note.startswith("not used") for note in found.notes)
    assert [record.text for record in records if isinstance(record, SentenceRecord)] == ["a", "b"]


@pytest.mark.parametrize(
    ("tables", "format", "files"),
    [
        ({"readme.txt": "Image, notes\nMy photos, of 2019\n"}, "folder", {}),
        ({"services.json": '[{"image": "postgres:14", "title": "the data of a shop"}]'}, "folder", {}),
        ({"notes.txt": "image,why\nelsewhere.jpg,the light was bad\n"}, "folder", {}),
        ({"links.json": '[{"image": "https://a.org/0.jpg", "title": "a shop by the sea"}]'}, "folder", {}),
        ({"captions.tsv": "file\tnumber\tsentence\n0.jpg\t0\ta\n", "splits.tsv": "0.jpg\ttest\n"}, "folder", {}),
        ({"bad.txt": "image,why\n0.jpg,dark\n", "list.csv": "file,text\n0.jpg,a\n"}, "table", {"table": "list.csv"}),
        ({"test.csv": "image\n0.jpg\n", "train.csv": "image,text\n0.jpg,a\n"}, "table", {"table": "train.csv"}),
        ({"test.csv": "image,text\n0.jpg,a\n", "val.csv": "image,text\n1.jpg,b\n"}, "table", {"table": "test.csv"}),
        ({"test_loss.csv": "epoch\n1\n", "train.csv": "image,text\n0.jpg,a\n"}, "table", {"table": "train.csv"}),
        (
            {"list.csv": "file,text\n0.jpg,a\n", "test.csv": "file\n0.jpg\n", "train.csv": "file\n0.jpg\n"},
            "table",
            {"table": "list.csv"},
        ),
        (dict.fromkeys(("2019.csv", "2020.csv"), "file,text\n0.jpg,a\n"), "table", {"table": "[0-9]*.csv"}),
        (dict.fromkeys(("1.csv", "2.csv", "all.csv"), "file,text\n0.jpg,a\n"), "table", {"table": "[0-9]*.csv"}),
        (dict.fromkeys(("1.csv", "2.csv", "1-2.csv"), "file,text\n0.jpg,a\n"), "table", {"table": "1.csv"}),
    ],
)
def test_other_lists_beside_photos_are_not_read(make, tables: dict[str, str], format: str, files: dict) -> None:
    folder = make("0.jpg", *tables)
    for name, text in tables.items():
        (folder / name).write_text(text)
    found = detect(folder)
    assert (found.format, found.files) == (format, files)


@pytest.mark.parametrize("captioned", [False, True])
def test_splits_and_boxes_without_captions_are_lists_of_the_folder(make, captioned: bool) -> None:
    """Without captions, the format `folder` reads splits.tsv and boxes.tsv. If the captions are in text files, neither
    list is read, and notes name both."""
    folder = make("0.jpg", "1.jpg", *["0.txt"] * captioned)
    (folder / "splits.tsv").write_text("0.jpg\ttest\n1.jpg\ttrain\n")
    (folder / "boxes.tsv").write_text("file\tx1\ty1\tx2\ty2\tscore\tlabel\n0.jpg\t1\t1\t9\t9\t1\tdog\n")
    found = detect(folder)
    assert (found.format, found.files) == ("text-files" if captioned else "folder", {})
    unused = {note.split()[2] for note in found.notes if note.startswith("not used")}
    assert unused == ({"splits.tsv", "boxes.tsv"} if captioned else set())


@pytest.mark.parametrize(
    ("files", "path"),
    [
        ({"table": "images/metadata.csv"}, "images/0.jpg"),
        ({"table": "images/metadata.csv", "images": "images"}, "images/0.jpg"),
        ({"table": "images/a/metadata.csv", "images": "images"}, "images/a/0.jpg"),
        ({"table": "../metadata.csv", "images": "images"}, "images/0.jpg"),
    ],
)
def test_names_in_metadata_are_relative_to_its_folder_if_that_is_inside_the_image_folder(
    make, files: dict, path: str
) -> None:
    folder = make(path, files["table"])
    (folder / files["table"]).write_text("file,text\n0.jpg,a\n")
    records = FORMATS["table"](folder, Options(files, {"sentence": "text"}, "divided"))
    assert next(record.path for record in records) == path


def test_photos_with_equal_names_in_folders_of_different_splits_are_not_confused(make) -> None:
    folder = make("train/0.jpg", "test/0.jpg", "train.csv", "test.csv")
    for name in ("train.csv", "test.csv"):
        (folder / name).write_text("file,text\n0.jpg,a\n")
    with pytest.raises(
        UsageError,
        match=r"named '0\.jpg'.*(train|test)\.csv name are .*such as (train|test)/0\.jpg in place of 0\.jpg\.",
    ):
        detect(folder)


ONE = {"emb": [[1.0, 2.0]]}
TWO = {"image_emb": [[1.0]], "text_emb": [[2.0]]}


@pytest.mark.parametrize(
    ("tables", "format", "files"),
    [
        ({"e.parquet": {"url": ["https://a.org/0.jpg"], **ONE}}, "vectors", {"images": "e.parquet"}),
        ({"e.parquet": {"id": [7], **ONE}, "x.csv": {}}, "vectors", {"images": "e.parquet"}),
        ({"e.parquet": {"file": ["1.jpg"], **TWO}}, "vectors", {"images": "e.parquet", "texts": "e.parquet"}),
        (
            {"images.parquet": ONE, "texts.parquet": ONE},
            "vectors",
            {"images": "images.parquet", "texts": "texts.parquet"},
        ),
        ({"data/train-0.parquet": ONE, "data/train-1.parquet": ONE}, "vectors", {"images": "data"}),
        ({"e.parquet": {"file": ["0.jpg"], **ONE}, "0.jpg": {}}, "table", {"table": "e.parquet"}),
        ({"e.parquet": {"file": ["1.jpg"], "bbox": [[1.0, 2.0]]}}, "table", {"table": "e.parquet"}),
    ],
)
def test_parquet_files_of_vectors(make, tables: dict[str, dict], format: str, files: dict) -> None:
    """Checks which Parquet files are recognised as vectors. In a folder with photos, a Parquet file is a table of the
    photos, even if it has vectors. A column of boxes (`bbox`) does not count as vectors."""
    folder = make(*tables)
    for name in filter(lambda name: name.endswith(".parquet"), tables):
        pq.write_table(pa.table(tables[name]), folder / name)
    for path in folder.glob("*.csv"):
        path.write_text("file\n1.jpg\n")
    found = detect(folder)
    assert (found.format, found.files) == (format, files)
    if list(tables) == ["e.parquet"]:
        assert detect(folder / "e.parquet") == found


def test_each_of_many_parquet_files_of_vectors_is_opened_few_times(make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make()
    looked = []
    schema = rows.schema
    folder.mkdir()
    for number in range(20):
        pq.write_table(pa.table({"file": ["1.jpg"], **ONE}), folder / f"part-{number}.parquet")
    monkeypatch.setattr(rows, "schema", lambda folder, path: looked.append(path) or schema(folder, path))
    assert detect(folder).files == {"images": "."} and len(looked) < 20 * 10


def test_a_table_without_a_header_is_named_and_not_read(make) -> None:
    folder = make("0.jpg", "1.jpg")
    (folder / "list.csv").write_text("0.jpg,a dog\n1.jpg,a cat\n")
    found = detect(folder)
    assert found.format == "folder" and "list.csv (has no header" in found.notes[0]


def test_the_first_names_of_a_list_do_not_decide_the_folder_of_the_others(make, gather) -> None:
    folder = make(*(f"{'one' if number < 25 else 'two'}/{number}.jpg" for number in range(30)), "list.csv")
    (folder / "list.csv").write_text("\n".join(["file,text", *(f"{number}.jpg,a dog" for number in range(30))]))
    found = detect(folder)
    result = gather(folder, found.format, files=found.files, columns=found.columns)
    assert result.counts["images"]["kept"] == 30


def test_tables_of_the_same_columns_are_one_table(make, gather) -> None:
    folder = make(*(f"{number}.jpg" for number in range(6)), "part-1.csv", "part-2.csv", "part-3.csv")
    for part in range(3):
        rows = [f"{number}.jpg,number {number} of six" for number in (2 * part, 2 * part + 1)]
        (folder / f"part-{part + 1}.csv").write_text("\n".join(["file,text", *rows]))
    found = detect(folder)
    assert found.files == {"table": "part-[0-9]*.csv"}
    result = gather(folder, found.format, files=found.files, columns=found.columns)
    assert sorted(result.tables["sentences"]["text"].to_pylist()) == [f"number {number} of six" for number in range(6)]
    before = describe_state(folder, found.format, found.files)
    (folder / "part-3.csv").write_text("file,text\n5.jpg,another\n")
    assert describe_state(folder, found.format, found.files) != before
    (folder / "part-2.csv").write_text("file,price\n2.jpg,7\n")
    found = detect(folder)
    assert found.files == {"table": "part-1.csv"} and "part-2.csv (one table is read)" in "".join(found.notes)


@pytest.mark.parametrize(
    ("contents", "recognised"),
    [
        ({"": ["0.tar"]}, "webdataset"),
        ({"": ["0.tar", "a.jpg"]}, "folder"),
        ({"": ["images.npy", "captions.npy"]}, "vectors"),
        ({"": ["images.npy", "captions.npy", "0.tar"]}, "webdataset"),
        ({"": ["images.npy", "captions.npy", "a.jpg", "a.txt"]}, "text-files"),
        ({"album": ["a.jpg", "a.txt"]}, "text-files"),
        ({"album": ["a.jpg", "b.txt"]}, "folder"),
        ({"": ["notes.doc"]}, None),
    ],
)
def test_formats_are_recognised_in_their_order_of_precedence(
    contents: dict[str, list[str]], recognised: str | None, tmp_path: Path
) -> None:
    """Checks which format `recognise` finds in `contents`: the names of the files in each subfolder.

    Only files of vectors are created, because only they are opened.
    """
    for name in contents.get("", []):
        if name.endswith(".npy"):
            (tmp_path / name).touch()
    detected = recognise(Survey(CollectionFolder(tmp_path, NO_OPTIONS), contents.items()))
    assert (detected and detected.format) == recognised

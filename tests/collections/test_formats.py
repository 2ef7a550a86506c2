"""Tests of all formats. One small collection is written in the files of each format."""

import csv
import io
import json
import re
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.collections.files import CollectionFolder
from pipeline.collections.formats import FORMATS, lists, rows
from pipeline.collections.records import Options
from pipeline.config.loading import validate
from pipeline.errors import InputError, UsageError
from pipeline.storage.sources import ImageSource

SENTENCES = {"a.jpg": ["A dog runs .", "Dogs\u2028run, “fast”"], "b c.jpg": ["Zwei Hunde 🐕"], "-rf.jpg": ["=cmd"]}
SPLITS = {"a.jpg": "train", "b c.jpg": "dev", "-rf.jpg": "test"}
ROWS = [(name, number, text) for name, texts in SENTENCES.items() for number, text in enumerate(texts)]


def add_images(folder: Path, photograph) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(SENTENCES):
        (folder / name).write_bytes(photograph(number))


def write_folder(root: Path, photograph) -> dict:
    add_images(root / "images", photograph)
    (root / "captions.tsv").write_text("".join(f"{name}\t{number}\t{text}\r\n" for name, number, text in ROWS))
    (root / "splits.tsv").write_text("".join(f"{name}\t{split}\n" for name, split in SPLITS.items()))
    return {}


def write_flickr(root: Path, photograph) -> dict:
    add_images(root / "Flicker8k_Dataset", photograph)
    (root / "text").mkdir()
    lines = [f"{name}#{number}\t{text}\n" for name, number, text in ROWS]
    (root / "text" / "Flickr8k.token.txt").write_text("".join(lines))
    for name, split in SPLITS.items():
        (root / "text" / f"Flickr_8k.{split}Images.txt").write_text(f"{name}\n")
    return {}


def write_karpathy(root: Path, photograph) -> dict:
    add_images(root / "pictures" / "val2014", photograph)
    splits = {"train": "restval", "dev": "val", "test": "test"}
    images = [
        {
            "filepath": "val2014",
            "filename": name,
            "split": splits[SPLITS[name]],
            "sentences": [{"raw": text, "tokens": text.split()} for text in texts],
        }
        for name, texts in SENTENCES.items()
    ]
    (root / "dataset_coco.json").write_text(json.dumps({"images": images, "dataset": "coco"}))
    return {"files": {"images": "pictures"}}


def write_coco(root: Path, photograph) -> dict:
    (root / "annotations").mkdir()
    names = {"train": "train2014", "dev": "val2014", "test": "test2014"}
    for number, (name, split) in enumerate(SPLITS.items()):
        (root / names[split]).mkdir()
        (root / names[split] / name).write_bytes(photograph(number))
        value = {
            "images": [{"id": 7, "file_name": name}],
            "annotations": [{"image_id": 7, "id": n, "caption": text} for n, text in enumerate(SENTENCES[name])],
        }
        (root / "annotations" / f"captions_{names[split]}.json").write_text(json.dumps(value))
    return {}


def write_csv(root: Path, photograph) -> dict:
    add_images(root, photograph)
    with open(root / "pairs.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["picture", "caption", "split"])
        writer.writerows((name, text, SPLITS[name]) for name, _, text in ROWS)
    return {"columns": {"file": "picture", "sentence": "caption"}}


def write_jsonl(root: Path, photograph) -> dict:
    add_images(root / "images", photograph)
    rows = [{"file": name, "sentence": texts, "split": SPLITS[name]} for name, texts in SENTENCES.items()]
    (root / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"files": {"images": "images"}}


def write_parquet(root: Path, photograph) -> dict:
    add_images(root, photograph)
    names, _, texts = zip(*ROWS, strict=True)
    table = pa.table({"file": names, "sentence": texts, "split": [SPLITS[name] for name in names]})
    pq.write_table(table, root / "pairs.parquet")
    return {}


def write_hub(root: Path, photograph) -> dict:
    """Write the collection as Parquet files that contain the photos, in one folder per split, as the Hugging Face hub
    converts datasets. Return {}, because the section `collection` of the configuration needs no further keys."""
    for number, (name, texts) in enumerate(SENTENCES.items()):
        folder = root / "default" / {"dev": "validation"}.get(SPLITS[name], SPLITS[name])
        folder.mkdir(parents=True)
        row = {"image": {"bytes": photograph(number), "path": name}, "sentence": texts}
        pq.write_table(pa.Table.from_pylist([row]), folder / "0000.parquet")
    return {}


def write_text_files(root: Path, photograph) -> dict:
    for number, (name, texts) in enumerate(SENTENCES.items()):
        folder = root / SPLITS[name] / "deep"
        folder.mkdir(parents=True)
        (folder / name).write_bytes(photograph(number))
        (folder / name).with_suffix(".txt").write_text("\n".join(texts))
    return {}


def write_webdataset(root: Path, photograph) -> dict:
    for number, (name, split) in enumerate(SPLITS.items()):
        stem = name.removesuffix(".jpg")
        text = "\n".join(SENTENCES[name]).encode()
        members = {
            f"{stem}.jpg": photograph(number),
            f"{stem}.json": b'{"caption": "not this one"}',
            f"{stem}.txt": text,
        }
        write_tar(root / f"{split}-0.tar", members)
    return {"files": {split: f"{split}-*.tar" for split in SPLITS.values()}}


def write_tar(path: Path, members: dict[str, bytes] | list[tuple[str | tarfile.TarInfo, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items() if isinstance(members, dict) else members:
            header = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))


def test_pascal1k_page_is_read_and_its_images_are_divided_by_id(tmp_path: Path, photograph, gather) -> None:
    """In every ten images of a category, eight become train, one becomes dev, and one becomes test. Only images that
    are missing or outside of the collection are rejected."""
    sources = [f"{kind}/2008_{7 * n:06d}.jpg" for kind in ("aeroplane", "tvmonitor") for n in range(20)]
    for number, source in enumerate(sources):
        (tmp_path / "dataset" / source).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dataset" / source).write_bytes(photograph(number))
    rows = [
        f'<tr><td><img src="{source}"></td><td><table>'
        + "".join(f"<tr><td> Caption {k} of {source} &amp;\n it </td></tr>" for k in range(5)) + "</table></td></tr>"
        for source in reversed([*sources, "aeroplane/3000_gone.jpg", "../outside.jpg", "http://host/cat/a.jpg"])
    ]  # fmt: skip
    (tmp_path / "index.html").write_text(f"<html><body><table>{''.join(rows)}</table></body></html>")
    result = gather(tmp_path, "pascal1k")
    images = {row["path"].removeprefix("dataset/"): row for row in result.tables["images"].to_pylist()}
    assert [images[source]["split"] for source in sources] == (["train"] * 8 + ["dev", "test"]) * 4
    assert len(result.rejected("images")) == 3
    texts = {}
    for row in result.tables["sentences"].to_pylist():
        texts.setdefault(row["image_id"], []).append(row["text"])
    for source, image in images.items():
        assert texts[image["image_id"]] == [f"Caption {k} of {source} & it" for k in range(5)]


WRITERS = {
    "folder": ("folder", write_folder),
    "flickr-token": ("flickr-token", write_flickr),
    "karpathy": ("karpathy", write_karpathy),
    "coco": ("coco", write_coco),
    "csv": ("table", write_csv),
    "jsonl": ("table", write_jsonl),
    "parquet": ("table", write_parquet),
    "hub": ("parquet", write_hub),
    "text-files": ("text-files", write_text_files),
    "webdataset": ("webdataset", write_webdataset),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_reads_the_same_collection(name: str, tmp_path: Path, photograph, gather) -> None:
    kind, write = WRITERS[name]
    collection = gather(tmp_path, kind, **write(tmp_path, photograph))
    assert collection.rejects == []
    collection.check(0, "rejects.jsonl")
    images = collection.tables["images"].to_pylist()
    assert [image["image_id"] for image in images] == [0, 1, 2]
    source = ImageSource(tmp_path)
    numbers = {source.read(i["path"], i["offset"], i["size"]): i["image_id"] for i in images}
    ids = {name: numbers[photograph(number)] for number, name in enumerate(SENTENCES)}
    assert {name: images[ids[name]]["split"] for name in ids} == SPLITS
    assert all((image["width"], image["height"]) == (32, 24) for image in images)
    found = [(row["image_id"], row["text"]) for row in collection.tables["sentences"].to_pylist()]
    assert found == sorted(found, key=lambda pair: pair[0])
    texts = {name: [text for image_id, text in found if image_id == ids[name]] for name in ids}
    assert texts == SENTENCES


ODD_NAMES = (
    "line\nfeed",
    "tab\there",
    '"it\'s"',
    "-rf",
    "$(touch x)",
    "*?[a]",
    "; :",
    "🐕",
    "e\u0301",
    "\u00e9",
    "\u202eb",
)
"""Names of photos, without suffix, that programs may misread in lists, shells, patterns and columns. Two of them are
the same letter in two forms of Unicode."""


def test_images_with_odd_names_are_read(tmp_path: Path, photograph, gather) -> None:
    names = [f"{name}.jpg" for name in (*ODD_NAMES, "x" * 251)]
    kinds = ("JPEG", "PNG")  # Every second file is a PNG, although its name ends with .jpg.
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(photograph(number, kinds[number % 2]))
        (tmp_path / name).with_suffix(".txt").write_text(f"picture {number}\n")
    rows = [{"file": name, "sentence": f"picture {number}"} for number, name in enumerate(names)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for kind, files in (("text-files", {}), ("table", {"table": "t.jsonl"})):
        collection = gather(tmp_path, kind, files=files)
        assert collection.rejects == []
        images = collection.tables["images"].to_pylist()
        source = ImageSource(tmp_path)
        assert {image["path"] for image in images} == set(names)
        for image, sentence in zip(images, collection.tables["sentences"].to_pylist(), strict=True):
            number = names.index(image["path"])
            assert sentence["text"] == f"picture {number}"
            assert source.read(image["path"]) == photograph(number, kinds[number % 2])


MAIN_FILES = {
    "flickr-token": ("Flickr8k.token.txt", "collection.files.sentences"),
    "karpathy": ("dataset_*.json", "collection.files.dataset"),
    "coco": ("captions_train*.json", "collection.files.train"),
    "table": ("*.parquet", "collection.files.table"),
    "webdataset": ("**/*.tar", "collection.files.train"),
}
"""Format -> the usual pattern of its main file, and the configuration key by which a user can name this file."""


@pytest.mark.parametrize("kind", FORMATS)
def test_message_names_missing_lists_and_existing_photos(kind: str, tmp_path: Path, photograph, gather) -> None:
    if kind == "text-files":
        with pytest.raises(InputError, match="No photo was found. Set data_root"):
            gather(tmp_path, kind).check(0, "rejects.jsonl")
    else:
        with pytest.raises(UsageError, match=f"^{tmp_path} contains no photos, and no .*(collection.files|data_root)"):
            gather(tmp_path, kind)
    with pytest.raises(UsageError, match="elsewhere is not a folder. Set data_root to the folder of your collection"):
        gather(tmp_path / "elsewhere", kind)
    add_images(tmp_path / "2021" / "beach", photograph)
    (tmp_path / ".hidden.jpg").touch()
    for what in MAIN_FILES.get(kind, ()):
        with pytest.raises(UsageError, match=f"contains 3 photos, and no .*{re.escape(what)}"):
            gather(tmp_path, kind)


def test_weak_text_and_boxes_are_read(tmp_path: Path, photograph, gather) -> None:
    write_folder(tmp_path, photograph)
    (tmp_path / "images" / "w.jpg").write_bytes(photograph(9))
    (tmp_path / "weak.tsv").write_text(
        "file\ttags\ttitle\tdescription\nw.jpg\tdog,park\tDSC_1\t\na.jpg\t\tTitle\tText\n"
    )
    rows = ["a.jpg\t-5\t1.5\t10\t99\t0.5\tdog", "w.jpg\t1\t2\t3\t4\t1e-3\tpotted plant"]
    (tmp_path / "boxes.tsv").write_text("\n".join(["file\tx1\ty1\tx2\ty2\tscore\tlabel", *rows]))
    tables = gather(tmp_path).tables
    assert tables["images"]["split"].to_pylist() == ["train", "dev", "test", "weak"]
    assert tables["documents"].to_pylist() == [
        {"image_id": 0, "title": "Title", "tags": "", "description": "Text"},
        {"image_id": 3, "title": "DSC_1", "tags": "dog,park", "description": ""},
    ]
    first, second = tables["boxes"].to_pylist()
    assert first == {"image_id": 0, "x1": 0, "y1": 1.5, "x2": 10, "y2": 24, "score": 0.5, "label": "dog"}
    assert second["image_id"] == 3 and second["label"] == "potted plant" and second["score"] == pytest.approx(1e-3)


def test_message_names_missing_column(tmp_path: Path, gather) -> None:
    (tmp_path / "a.csv").write_text("picture,sentence\nx.jpg,A dog .\n")
    with pytest.raises(InputError, match="no column file. Set collection.columns to .*: picture, sentence"):
        gather(tmp_path, "table")


@pytest.mark.parametrize("text", ['{"images": [], "images": []}', '{"images": NaN}', "[" * 100_000, "{", '{"a": 1}'])
def test_message_names_faulty_json_file(text: str, tmp_path: Path, gather) -> None:
    (tmp_path / "dataset.json").write_text(text)
    with pytest.raises(InputError, match="dataset.json"):
        gather(tmp_path, "karpathy")


@pytest.mark.parametrize(
    "text", [" [ ] ", '[{"file": "a.jpg"}]', '[{"file": "a.jpg"} ,\n{"file": "b,].jpg"},1, "x"]\n']
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_json_items_agree_with_json_module(text: str, encoding: str, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(text, encoding)
    folder = CollectionFolder(tmp_path, Options({}, {}, "train"))
    assert list(lists.json_items(folder, tmp_path / "list.json")) == json.loads(text)


@pytest.mark.parametrize(
    "text", ["", "{}", "[", "[1", "[1,", "[1,]", "[1 2]", "[1[2]", "[1]]", "[" * 9999, '[{"a": 1, "a": 2}]']
)
def test_message_names_damaged_list(text: str, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(text)
    folder = CollectionFolder(tmp_path, Options({}, {}, "train"))
    with pytest.raises(InputError, match="list.json is not"):
        list(lists.json_items(folder, tmp_path / "list.json"))


@pytest.mark.parametrize(("text", "read"), [('{"a.jpg": "a dog"}\n \n', "sentence"), ('{"a.jpg": 1}\n{}', "a.jpg")])
def test_json_file_with_one_line_is_not_json_lines(text: str, read: str, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(text)
    folder = CollectionFolder(tmp_path, Options({}, {}, "train"))
    assert read in next(rows.read_rows(folder, tmp_path / "list.json", (), ())).values


def test_json_list_is_read_only_as_far_as_needed(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text('[{"file": "a.jpg"}, no more JSON')
    folder = CollectionFolder(tmp_path, Options({}, {}, "train"))
    assert next(rows.read_rows(folder, tmp_path / "list.json", (), ())).values == {"file": "a.jpg"}


def test_pascal1k_sentence_may_contain_html_tags(tmp_path: Path) -> None:
    cells = "<td> A <i>red</i> bus <b>turns</b> . </td><td>Two buses .</td>"
    (tmp_path / "index.html").write_text(f'<table><tr><td><img src="bus/1.jpg"></td>{cells}</tr></table>')
    (tmp_path / "images").mkdir()
    _, *sentences = FORMATS["pascal1k"](tmp_path, Options({}, {}, "train"))
    assert [record.text for record in sentences] == ["A red bus turns .", "Two buses ."]


def test_caption_comes_from_first_column_that_is_not_empty(tmp_path: Path, photograph, gather) -> None:
    add_images(tmp_path, photograph)
    with open(tmp_path / "t.csv", "w", newline="") as file:
        rows = [("a.jpg", "Vase", "A blue vase ."), ("b c.jpg", "Teapot", " "), ("-rf.jpg", "", "")]
        csv.writer(file).writerows([("file", "Titel", "Beschreibung"), *rows])
    columns = validate({"collection": {"columns": {"sentence": ["Beschreibung", "Titel"]}}}).collection.columns
    result = gather(tmp_path, "table", columns=columns)
    assert result.tables["sentences"]["text"].to_pylist() == ["A blue vase .", "Teapot"]
    assert result.counts["images"]["kept"] == 3 and result.rejects == []
    assert {"Titel", "Beschreibung"}.isdisjoint(result.tables["images"].column_names)
    both = gather(tmp_path, "table", columns={**columns, "title": "Titel"})
    assert both.tables["documents"]["title"].to_pylist() == ["Vase", "Teapot"]
    with pytest.raises(InputError, match="has no column Untertitel"):
        gather(tmp_path, "table", columns={"sentence": "Beschreibung | Untertitel"})
    with pytest.raises(InputError, match="has no column caption#"):
        gather(tmp_path, "table", columns={"sentence": "caption#"})

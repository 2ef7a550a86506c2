"""init: what it says of a collection, and that what it writes is a configuration that reads it."""

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from made_up import ingest, run_command
from PIL import ExifTags, Image

from pipeline.config import loading
from pipeline.errors import InputError, JointspaceError, RejectLimitError, UsageError
from pipeline.storage.demo_folder import MARK
from pipeline.storage.manifest import Manifest


@pytest.fixture
def photos(tmp_path: Path, photograph, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "my photos"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number:02d}.jpg").write_bytes(photograph(number))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return folder


def caption(folder: Path, kind: str) -> None:
    names = sorted(path.name for path in folder.glob("*.jpg"))
    if kind == "folder":
        (folder / "captions.tsv").write_text("".join(f"{name}\t0\ta dog\n" for name in names))
    elif kind == "text-files":
        for name in names:
            (folder / name).with_suffix(".txt").write_text("a dog\n")
    elif kind == "takeout":
        for number, name in enumerate(names):
            suffix = ".supplemental-meta.json" if number % 2 else ".json"
            (folder / f"{name}{suffix}").write_text(json.dumps({"title": name, "description": "a dog"}))
    else:
        rows = [{"Image": name, "caption": "a dog", "price": 3} for name in names]
        (folder / "shop.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("texts", "kind"),
    [("folder", "folder"), ("text-files", "text-files"), ("takeout", "text-files"), ("table", "table")],
)
def test_what_it_writes_reads_what_it_says(photos: Path, tmp_path: Path, texts: str, kind: str) -> None:
    caption(photos, texts)
    said = run_command("init", photos)
    assert f"20 images, 20 sentences (format {kind})" in said and "train 16, dev 2, test 2" in said
    assert said.splitlines()[-1] == "jointspace run my-photos.yaml"
    chosen = loading.load(Path("my-photos.yaml"))
    assert (chosen.data_root, chosen.collection.format, chosen.models) == (str(photos), kind, ("cca", "ncca"))
    written = yaml.safe_load(Path("my-photos.yaml").read_text())
    ingest(tmp_path / "run", photos, {"collection": written.get("collection", {})})
    assert Manifest(tmp_path / "run/manifest").summary["splits"] == {"train": 16, "dev": 2, "test": 2}
    defaults = loading.read_mapping(loading.default_path())
    assert all(defaults.get(key) != value for key, value in written.items())


def write_coco(folder: Path, photograph, counts: dict[str, int]) -> Path:
    """A folder as COCO is downloaded: photos and captions of each part, such as train2017."""
    (folder / "annotations").mkdir(parents=True)
    for part, count in counts.items():
        (folder / part).mkdir()
        images = [{"id": number, "file_name": f"{part}-{number}.jpg"} for number in range(count)]
        for image in images:
            (folder / part / image["file_name"]).write_bytes(photograph(100 * len(part) + image["id"]))
        annotations = [{"image_id": image["id"], "caption": f"a dog in {part}"} for image in images]
        text = json.dumps({"images": images, "annotations": annotations})
        (folder / f"annotations/captions_{part}.json").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("counts", "draw", "evaluated", "splits"),
    [
        ({"train2017": 40, "val2017": 7}, ["test"], ["dev", "test"], {"train": 36, "dev": 7, "test": 4}),
        ({"train2017": 40, "test2017": 7}, ["dev"], ["dev", "test"], {"train": 36, "dev": 4, "test": 7}),
        ({"train2017": 8, "val2017": 3}, None, ["dev"], {"train": 8, "dev": 3}),
        ({"train2017": 40}, None, ["dev", "test"], {"train": 32, "dev": 4, "test": 4}),
        ({"train2017": 6}, None, ["dev"], {"train": 5, "dev": 1}),
    ],
)
def test_a_collection_without_some_splits_gets_a_configuration_that_runs(
    tmp_path: Path, photograph, monkeypatch: pytest.MonkeyPatch, counts, draw, evaluated, splits
) -> None:
    root = write_coco(tmp_path / "coco", photograph, counts)
    monkeypatch.chdir(tmp_path)
    said = run_command("init", root)
    assert "splits: " + ", ".join(f"{name} {count}" for name, count in splits.items()) in said
    written = yaml.safe_load(Path("coco.yaml").read_text())
    assert (
        written["collection"].get("draw") == draw and list(loading.load(Path("coco.yaml")).evaluate.splits) == evaluated
    )
    run_command("ingest", "--run", "run", "--config", "coco.yaml", "--check-splits")
    assert Manifest(Path("run/manifest")).summary["splits"] == splits


def test_train_photos_alone_are_drawn_from(photos: Path, tmp_path: Path) -> None:
    caption(photos, "folder")
    names = sorted(path.name for path in photos.glob("*.jpg"))
    (photos / "splits.tsv").write_text("".join(f"{name}\ttrain\n" for name in names))
    assert "names no photo for dev and test" in run_command("init", photos)
    by_hash = sorted(names, key=lambda name: hashlib.sha256((photos / name).read_bytes()).hexdigest())
    run_command("ingest", "--run", tmp_path / "run", "--config", "my-photos.yaml", "--check-splits")
    images = Manifest(tmp_path / "run/manifest").images.to_pylist()
    assert {row["path"] for row in images if row["split"] == "test"} == set(by_hash[:2])
    assert {row["path"] for row in images if row["split"] == "dev"} == set(by_hash[2:4])


def test_a_run_without_a_split_that_it_needs_ends_before_a_photo_is_decoded(tmp_path: Path, photograph) -> None:
    root = write_coco(tmp_path / "coco", photograph, {"train2017": 40, "val2017": 7})
    (root / "val2017/val2017-3.jpg").write_bytes(b"no photo")
    config = tmp_path / "coco.yaml"
    own = {
        "name": "coco",
        "data_root": str(root),
        "demo": {"generate": False},
        "results_root": str(tmp_path / "results"),
    }
    own |= {"models": ["ncca"], "collection": {"format": "coco", "reject_limit": 0}}
    config.write_text(yaml.safe_dump(own))
    with pytest.raises(InputError, match=r"in the split test, .*draw: \[test\].* leave it out of evaluate\.splits"):
        run_command("ingest", "--run", tmp_path / "run", "--config", config, "--check-splits")
    with pytest.raises(RejectLimitError):
        run_command("ingest", "--run", tmp_path / "run", "--config", config)


def test_photographs_without_sentences_are_searched_with_a_pretrained_model(photos: Path, tmp_path: Path) -> None:
    assert run_command("init", photos).splitlines()[-1].endswith("--encoder clip")
    assert not list(Path.cwd().iterdir())
    (tmp_path / MARK).touch()
    for name, data_root in (("drawn", tmp_path), ("holiday", photos)):
        card = Path("results") / name / "index/ncca/card.json"
        card.parent.mkdir(parents=True)
        card.write_text(json.dumps({"data_root": str(data_root)}))
    *_, first, _, second = run_command("init", photos).splitlines()
    assert first.endswith("--encoder clip") and "drawn" not in second
    assert second.startswith("jointspace apply results/holiday/index/ncca") and second.endswith("results/my-photos")
    (photos / "notes.txt").write_text("sun cream")
    for encoder in ("siglip", "clip"):
        Path("my-photos.yaml").unlink(missing_ok=True)
        said = run_command("init", photos, "--encoder", encoder)
        assert "pip install 'jointspace[open-clip" in said and " MB of weights" in said
        chosen = loading.load(Path("my-photos.yaml"))
        (image,), (text,) = chosen.encoders, chosen.text_encoders
        assert chosen.models == ("zero-shot",) and image.architecture == text.own.architecture
    written = yaml.safe_load(Path("my-photos.yaml").read_text())
    ingest(tmp_path / "run", photos, {"collection": written["collection"]})
    assert Manifest(tmp_path / "run/manifest").summary["splits"] == {"gallery": 20}
    caption(photos, "folder")
    run_command("init", photos, "--encoder", "clip", "--output", "both.yaml")
    assert loading.load(Path("both.yaml")).models == ("zero-shot", "ncca")


def test_descriptions_inside_of_photographs_are_named(photos: Path) -> None:
    for number, text in enumerate(["OLYMPUS DIGITAL CAMERA", "Anna and her dog", "SONY DSC"]):
        exif = Image.Exif()
        exif[ExifTags.Base.ImageDescription] = text
        Image.new("RGB", (40, 40)).save(photos / f"{number:02d}.jpg", exif=exif)
    said = run_command("init", photos)
    assert "1 of 20 photos looked into have a description, such as 'Anna and her dog'" in said
    caption(photos, "folder")
    assert "looked into" not in run_command("init", photos)


def test_a_table_with_titles_alone_and_photographs_that_are_not_there(photos: Path, tmp_path: Path) -> None:
    rows = [f"{number:02d}.jpg;Vase {number};19{number};3,{number}" for number in range(22)]
    (photos / "archive.csv").write_text("\n".join(["file;Title;year;price", *rows]))
    said = run_command("init", photos)
    assert "20 images, 20 sentences (format table)" in said and "train 16, dev 2, test 2" in said
    assert "Title is used as the caption" in said and "2 photos that the lists name are not there" in said
    assert "columns to filter by: year (int64), price (double)" in said
    settings = yaml.safe_load(Path("my-photos.yaml").read_text())["collection"]
    assert settings["columns"] == {"sentence": "Title"}
    ingest(tmp_path / "run", photos, {"collection": {**settings, "reject_limit": 0.5}})
    assert Manifest(tmp_path / "run/manifest").summary["counts"]["sentences"]["kept"] == 20


def test_what_it_refuses(photos: Path, tmp_path: Path) -> None:
    caption(photos, "folder")
    (tmp_path / "net.pt").touch()
    for arguments, match in [
        (["--weights", tmp_path / "none.pt"], "none.pt is not a file"),
        (["--weights", tmp_path / "net.pt", "--encoder", "clip"], "has its own weights"),
        (["--weights", tmp_path / "net.pt"], "give its --architecture"),
        (["--weights", tmp_path / "net.pt", "--architecture", "resnet5000"], "resnet5000"),
    ]:
        with pytest.raises(UsageError, match=match):
            run_command("init", photos, *arguments)
    Path("mine.yaml").write_text("mine")
    with pytest.raises(UsageError, match="mine.yaml exists"):
        run_command("init", photos, "--output", "mine.yaml")
    assert Path("mine.yaml").read_text() == "mine"
    odd = photos.rename(tmp_path / "odd {name}")
    with pytest.raises(UsageError, match="data_root"):
        run_command("init", odd)
    with pytest.raises(UsageError, match="does not exist"):
        run_command("init", tmp_path / "nowhere")


@pytest.mark.parametrize("damage", ["a tar that is none", "a cut Parquet", "links", "Git LFS"])
def test_photographs_of_which_none_can_be_used_end_it_with_the_reason(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    file, text = {
        "a tar that is none": ("photos.tar", "<html>404</html>"),
        "a cut Parquet": ("train-0.parquet", "PAR1 and no more"),
        "links": ("links.csv", "url,caption\nhttps://example.org/a.jpg,a dog\n"),
        "Git LFS": ("train-0.parquet", "version https://git-lfs.github.com/spec/v1\n"),
    }[damage]
    (folder / file).write_text(text)
    with pytest.raises(JointspaceError, match=f"{folder}.*{file}"):
        run_command("init", folder)
    for number in range(2 if file.endswith("parquet") else 0):  # the sound ones are read, and this one is rejected
        row = {"image": {"bytes": b"", "path": f"{number}.jpg"}, "caption": "a dog"}
        pq.write_table(pa.Table.from_pylist([row]), folder / f"train-{number + 1}.parquet")
        assert f"{number + 1} images" in run_command("init", folder, "--output", tmp_path / f"{number}.yaml")

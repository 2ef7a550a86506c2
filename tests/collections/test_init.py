"""Tests of `init`: its output about a collection, and the configuration that it writes."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from click.testing import CliRunner
from PIL import ExifTags, Image
from synthetic_run import ingest, run_command

from pipeline.config import loading
from pipeline.config.encoders import NETWORKS
from pipeline.encoders.networks import build
from pipeline.errors import InputError, JointspaceError, RejectLimitError, UsageError
from pipeline.storage.demo_folder import MARK
from pipeline.storage.manifest import Manifest
from stages.cli import cli
from stages.collections.init import _name_network


@pytest.fixture
def photos(tmp_path: Path, photograph, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "my photos"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number:02d}.jpg").write_bytes(photograph(number))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return folder


def refuse(*arguments: object) -> tuple[str, JointspaceError]:
    """Run `init`, which must fail with a JointspaceError. Return its output and the error."""
    result = CliRunner().invoke(cli.get_command(None, "init"), list(map(str, arguments)))
    assert isinstance(result.exception, JointspaceError), result.output
    return result.stdout, result.exception


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
def test_the_written_configuration_reads_what_init_reports(photos: Path, tmp_path: Path, texts: str, kind: str) -> None:
    caption(photos, texts)
    said = run_command("init", photos)
    assert f"20 photos, 20 captions (format {kind})" in said and "train 16, dev 2, test 2" in said
    assert said.splitlines()[-1].endswith("jointspace run my-photos.yaml")
    chosen = loading.load(Path("my-photos.yaml"))
    assert (chosen.data_root, chosen.collection.format, chosen.models) == (str(photos), kind, ("cca", "ncca"))
    written = yaml.safe_load(Path("my-photos.yaml").read_text())
    ingest(tmp_path / "run", photos, {"collection": written.get("collection", {})})
    assert Manifest(tmp_path / "run/manifest").summary["splits"] == {"train": 16, "dev": 2, "test": 2}
    defaults = loading.read_mapping(loading.default_path())
    assert all(defaults.get(key) != value for key, value in written.items())


@pytest.mark.parametrize(
    ("separator", "reason"),
    [
        (" ", "followed by a space, and not by a tab"),
        (";", "followed by a semicolon, and not by a tab"),
        (None, "captions.tsv is empty"),
    ],
)
def test_unusable_captions_are_explained_with_an_example_that_works(
    photos: Path, separator: str | None, reason: str
) -> None:
    path = photos / "captions.tsv"
    path.write_text("".join(f"{number:02d}.jpg{separator}a dog\n" for number in range(20)) if separator else "")
    said, _ = refuse(photos)
    assert reason in said and "captions.tsv" in said
    (example,) = [line.strip() for line in said.splitlines() if "<TAB>" in line]
    assert example.startswith("00.jpg<TAB>")
    path.write_text("".join(example.replace("00.jpg", f"{n:02d}.jpg").replace("<TAB>", "\t") + "\n" for n in range(20)))
    assert "20 photos, 20 captions" in run_command("init", photos)


@pytest.mark.parametrize("name", ["captions.tsv", "splits.tsv"])
def test_a_list_of_a_folder_is_not_a_table(photos: Path, name: str) -> None:
    caption(photos, "folder")
    (photos / "splits.tsv").write_text("00.jpg\ttrain\n")
    with pytest.raises(UsageError, match=f"Give the folder: `jointspace init '{photos}'`"):
        run_command("init", photos / name)


def make_coco(folder: Path, photograph, counts: dict[str, int]) -> Path:
    """Make a folder like a download of COCO, with photos and captions of each part, and return it.

    `counts` has the number of photos of each part, such as train2017. Each photo has one caption.
    """
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
    root = make_coco(tmp_path / "coco", photograph, counts)
    monkeypatch.chdir(tmp_path)
    said = run_command("init", root)
    assert "splits: " + ", ".join(f"{name} {count}" for name, count in splits.items()) in said
    written = yaml.safe_load(Path("coco.yaml").read_text())
    assert (
        written["collection"].get("draw") == draw and list(loading.load(Path("coco.yaml")).evaluate.splits) == evaluated
    )
    run_command("ingest", "--run", "run", "--set-config", "coco.yaml", "--check-splits")
    assert Manifest(Path("run/manifest")).summary["splits"] == splits


def test_splits_are_drawn_from_train_photos_only(photos: Path, tmp_path: Path) -> None:
    caption(photos, "folder")
    names = sorted(path.name for path in photos.glob("*.jpg"))
    (photos / "splits.tsv").write_text("".join(f"{name}\ttrain\n" for name in names))
    assert "names no photo for dev and test" in run_command("init", photos)
    by_hash = sorted(names, key=lambda name: hashlib.sha256((photos / name).read_bytes()).hexdigest())
    run_command("ingest", "--run", tmp_path / "run", "--set-config", "my-photos.yaml", "--check-splits")
    images = Manifest(tmp_path / "run/manifest").images.to_pylist()
    assert {row["path"] for row in images if row["split"] == "test"} == set(by_hash[:2])
    assert {row["path"] for row in images if row["split"] == "dev"} == set(by_hash[2:4])


def test_a_run_without_a_split_that_it_needs_ends_before_a_photo_is_decoded(tmp_path: Path, photograph) -> None:
    root = make_coco(tmp_path / "coco", photograph, {"train2017": 40, "val2017": 7})
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
    with pytest.raises(InputError, match=r"the split test has no .*draw: \[test\].* from evaluate\.splits"):
        run_command("ingest", "--run", tmp_path / "run", "--set-config", config, "--check-splits")
    with pytest.raises(RejectLimitError):
        run_command("ingest", "--run", tmp_path / "run", "--set-config", config)


def test_photos_without_sentences_are_searched_with_a_pretrained_model(photos: Path, tmp_path: Path) -> None:
    said, error = refuse(photos)
    assert said.splitlines()[-1].endswith("--encoder clip") and "no configuration was written" in str(error)
    assert not list(Path.cwd().iterdir())
    (tmp_path / MARK).touch()
    for name, data_root in (("drawn", tmp_path), ("holiday", photos)):
        card = Path("results") / name / "index/ncca/card.json"
        card.parent.mkdir(parents=True)
        card.write_text(json.dumps({"data_root": str(data_root)}))
    *_, first, _, second = refuse(photos)[0].splitlines()
    assert first.endswith("--encoder clip") and "drawn" not in second
    assert "jointspace apply results/holiday/index/ncca" in second and second.endswith("results/my-photos")
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
    said = run_command("init", photos, "--encoder", "clip", "--output", "both.yaml")
    assert "dev has only 2 photos, which are too few to choose a model, so clip is used as it is" in said
    assert loading.load(Path("both.yaml")).models == ("zero-shot",)
    (photos / "captions.tsv").write_text("".join(f"{number:02d}.jpg\t0\ta dog\n" for number in range(4)))
    said = run_command("init", photos, "--encoder", "clip", "--output", "few.yaml")
    assert "Too few of these photos have captions to train on (4), so clip is used as it is" in said


def test_empty_captions_are_ignored_and_missing_captions_are_counted(photos: Path) -> None:
    names = [f"{number:02d}.jpg" for number in range(20)]
    (photos / "captions.tsv").write_text("".join(f"{name}\t{'a dog' * (name < '04')}\n" for name in names))
    said, _ = refuse(photos)
    assert "rejected" not in said and "16 captions are empty and are ignored" in said
    assert "4 photos with captions can be in train or dev, but a model needs at least 5 such photos" in said
    (photos / "splits.tsv").write_text("".join(f"{name}\t{'dev' if name > '17' else 'train'}\n" for name in names))
    said, _ = refuse(photos)
    assert "4 photos have captions, but none of the 3 photos of dev has one" in said
    (photos / "captions.tsv").write_text("".join(f"{name}\t{'a dog' * (name > '16')}\n" for name in names))
    assert "train 1, dev 3, gallery 16" in run_command("init", photos, "--output", "named.yaml")
    (photos / "captions.tsv").write_text("".join(f"{name}\ta dog\n" for name in names))
    (photos / "splits.tsv").write_text("".join(f"{name}\t{'train' if name < '04' else 'test'}\n" for name in names))
    said, _ = refuse(photos)
    assert "4 photos with captions can be in train or dev, but a model needs at least 5 such photos" in said
    (photos / "splits.tsv").write_text("".join(f"{name}\ttest\n" for name in names))
    said, _ = refuse(photos)
    assert "None of these photos is in the split train" in said and "a model needs" not in said
    (photos / "splits.tsv").unlink()
    (photos / "captions.tsv").write_text("".join(f"{name}\t{'a dog' * (name < '05')}\n" for name in names))
    assert "train 4, dev 1" in run_command("init", photos)


def test_vectors_of_texts_that_cannot_be_paired_are_not_called_absent(tmp_path: Path) -> None:
    for name, rows in (("images", 20), ("texts", 21)):
        np.save(tmp_path / f"{name}.npy", np.eye(rows, 4, dtype=np.float32))
    (tmp_path / "images.txt").write_text("".join(f"{number}.jpg\n" for number in range(20)))
    said, _ = refuse(tmp_path)
    assert "there are 21 for 20 images" in said and "No row of texts.npy belongs to an image. Correct the file" in said
    assert "has no vectors of captions" not in said
    (tmp_path / "texts.npy").unlink()
    assert "The collection has no vectors of captions." in refuse(tmp_path)[0]
    for name in ("images", "texts"):
        np.save(tmp_path / f"{name}.npy", np.ones((2, 4), np.float32) * [[1], [2]])
    (tmp_path / "images.txt").write_text("a\nb\n")
    said, _ = refuse(tmp_path)
    assert "Too few of these photos have captions to train on (2).\nIf CLIP's ViT-B-32 made the image vectors" in said


def test_descriptions_inside_photos_are_reported(photos: Path) -> None:
    for number, text in enumerate(["OLYMPUS DIGITAL CAMERA", "Anna and her dog", "SONY DSC"]):
        exif = Image.Exif()
        exif[ExifTags.Base.ImageDescription] = text
        Image.new("RGB", (40, 40)).save(photos / f"{number:02d}.jpg", exif=exif)
    said, _ = refuse(photos)
    assert "1 of 20 opened photos contain a description, such as 'Anna and her dog'" in said
    caption(photos, "folder")
    assert "opened photos" not in run_command("init", photos)


def test_a_table_with_titles_only_and_with_missing_photos(photos: Path, tmp_path: Path) -> None:
    rows = [f"{number:02d}.jpg;Vase {number};19{number};3,{number}" for number in range(22)]
    (photos / "archive.csv").write_text("\n".join(["file;Title;year;price", *rows]))
    said, error = refuse(photos)
    assert error.exit_code == 3 and "2 of 22 photos cannot be used" in str(error) and "reject_limit 0.05" in str(error)
    assert str(error).endswith("jointspace run my-photos.yaml") and "jointspace run" not in said
    assert "20 photos, 20 captions (format table)" in said and "train 16, dev 2, test 2" in said
    assert "Title is used as the caption" in said and "2 photos that the lists name do not exist" in said
    assert "columns to filter by: year (int64), price (double)" in said
    assert "a page that others can reach shows only the columns that serve.columns names" in said
    settings = yaml.safe_load(Path("my-photos.yaml").read_text())["collection"]
    assert settings["columns"] == {"sentence": "Title"}
    ingest(tmp_path / "run", photos, {"collection": {**settings, "reject_limit": 0.5}})
    assert Manifest(tmp_path / "run/manifest").summary["counts"]["sentences"]["kept"] == 20


@pytest.mark.parametrize(
    ("file", "network"),
    [
        ("VGG16-BN.pth", "vgg16_bn"),
        ("efficientnet_v2_s-dd5fe13b.pth", "efficientnet_v2_s"),
        ("densenet121.pt", "densenet121"),
    ],
)
def test_the_network_of_a_file_of_weights_is_named(file: str, network: str) -> None:
    assert _name_network(Path(file)) == network


def test_torch_is_not_imported_without_weights(photos: Path) -> None:
    caption(photos, "folder")
    program = (
        "import sys; from stages.cli import cli; cli(sys.argv[1:], standalone_mode=False);"
        " print({'torch', 'torchvision'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "init", str(photos)], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.endswith("set()\n"), done.stderr
    assert "the first run downloads the weights of ResNet-50 (about 100 MB)" in done.stdout
    assert "--weights FILE" in done.stdout


def test_weights_are_read_and_compared_with_the_network(photos: Path, tmp_path: Path, photograph) -> None:
    caption(photos, "folder")
    for name in ("squeezenet1_1-b8a52dc0.pth", "resnet18.pth"):
        torch.save(build("squeezenet1_1", seed=1).state_dict(), tmp_path / name)
    (tmp_path / "sheet.png").write_bytes(photograph(0))
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "script.pt"))
    for name, architecture, message in (
        ("resnet18.pth", None, "resnet18.pth has the tensor classifier.1.bias, which the architecture does not have."),
        ("sheet.png", "squeezenet1_1", "sheet.png is neither a safetensors file nor a state dict"),
        ("script.pt", "squeezenet1_1", "script.pt is neither a safetensors file nor a state dict"),
    ):
        options = ["--architecture", architecture] if architecture else []
        with pytest.raises(InputError) as caught:
            run_command("init", photos, "--weights", tmp_path / name, *options)
        said = str(caught.value)
        assert said.startswith(message) and said.endswith("or its network with --architecture.")
        assert "weights_only" not in said
        assert list(Path.cwd().iterdir()) == []
    said = run_command("init", photos, "--weights", tmp_path / "squeezenet1_1-b8a52dc0.pth")
    assert "downloads" not in said
    (encoder,) = loading.load(Path("my-photos.yaml")).encoders
    assert (encoder.name, encoder.architecture) == ("squeezenet1_1", "squeezenet1_1")


def test_the_networks_of_torchvision_are_known_without_importing_it() -> None:
    from torchvision import models

    assert [name for name in models.list_models(module=models) if not NETWORKS.fullmatch(name)] == []


def test_unusable_folders_are_refused_with_a_reason(photos: Path, tmp_path: Path) -> None:
    caption(photos, "folder")
    (tmp_path / "net.pt").touch()
    for arguments, match in [
        (["--weights", tmp_path / "none.pt"], "none.pt is not a file"),
        (["--weights", tmp_path / "net.pt", "--encoder", "clip"], "has its own weights"),
        (["--weights", tmp_path / "net.pt"], "does not begin with the name of a network"),
        (["--weights", tmp_path / "net.pt", "--architecture", "resnet5000"], "resnet5000"),
    ]:
        with pytest.raises(UsageError, match=match):
            run_command("init", photos, *arguments)
    with pytest.raises(UsageError, match=r"The folder missing does not exist\. Create it"):
        run_command("init", photos, "--output", "missing/mine.yaml")
    assert not Path("missing").exists()
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
def test_a_collection_without_usable_photos_is_refused_with_the_reason(tmp_path: Path, damage: str) -> None:
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
    # The photos in further Parquet files are counted, and only the damaged file is rejected. `init` still fails,
    # because the photos are too few for a model.
    for number in range(2 if file.endswith("parquet") else 0):
        row = {"image": {"bytes": b"", "path": f"{number}.jpg"}, "caption": "a dog"}
        pq.write_table(pa.Table.from_pylist([row]), folder / f"train-{number + 1}.parquet")
        assert f"{number + 1} photos" in refuse(folder)[0]


WORDS = ("A red bench in the snow .", "A green kite over the water .", "Two lamps , one of them blue .")


def described(folder: Path) -> list[tuple[str, str]]:
    """Return the paths of all photos below the folder, each with a unique caption."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg"))
    return [(name, f"{WORDS[number % 3]} {number}") for number, name in enumerate(names)]


def write_messages(folder: Path) -> None:
    """Write chat.json, the messages of a chat. The first 30 messages have no photo, and each of the others has one
    photo."""
    chat = [{"id": 7 * number, "text": "Good morning to you all"} for number in range(30)]
    chat += [{"id": 999, "text": text, "photo": name} for name, text in described(folder)]
    (folder / "chat.json").write_text(json.dumps({"messages": chat}))


def write_placeholders_first(folder: Path) -> None:
    rows = [{"Bild": "n/a", "words": "none"}, *({"Bild": name, "words": text} for name, text in described(folder))]
    (folder / "list.json").write_text(json.dumps(rows))


def write_unquoted_commas(folder: Path) -> None:
    lines = [f"{name},{text.replace(' .', ', and more,')}" for name, text in described(folder)]
    (folder / "captions.txt").write_text("\n".join(["image,caption", *lines]))


def write_commas_before_the_name(folder: Path) -> None:
    (folder / "list.csv").write_text(
        "\n".join(["caption;file", *(f"{text};;{name}" for name, text in described(folder))])
    )


def write_names_without_endings(folder: Path) -> None:
    rows = [{"picture": name.removesuffix(".jpg"), "legend": text} for name, text in described(folder)]
    (folder / "list.json").write_text(json.dumps({"data": rows}))


def write_numbers_without_zeros(folder: Path) -> None:
    for number, path in enumerate(sorted(folder.glob("*.jpg")), 40):
        path.rename(folder / f"{number:012d}.jpg")
    rows = [{"image_id": int(name.removesuffix(".jpg")), "caption": text} for name, text in described(folder)]
    (folder / "narratives.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_titles_and_captions(folder: Path) -> None:
    rows = [f"{name}\tDSC{number}\t{text}" for number, (name, text) in enumerate(described(folder))]
    (folder / "exif.tsv").write_text("\n".join(["SourceFile\tTitle\tCaption-Abstract", *rows]))


def write_titles_of_one_word(folder: Path) -> None:
    rows = [f"{name};IMG{number};{text}" for number, (name, text) in enumerate(described(folder))]
    (folder / "liste.csv").write_text("\n".join(["Datei;Title;Beschreibung", *rows]))


def write_windows_1252(folder: Path) -> None:
    rows = [f"{name};{text} größer" for name, text in described(folder)]
    (folder / "liste.csv").write_bytes("\r\n".join(["Bild;Größenerläuterung", *rows]).encode("cp1252"))


def write_windows_1252_below_an_ascii_header(folder: Path) -> None:
    rows = [f"{name};{text}{' größer' * (number > 5)}" for number, (name, text) in enumerate(described(folder))]
    (folder / "liste.csv").write_bytes("\r\n".join(["Bild;Text", *rows]).encode("cp1252"))


def write_several_tables_and_text_files(folder: Path) -> None:
    for part in range(2):
        keys = [{"key": name.removesuffix(".jpg"), "caption": text} for name, text in described(folder)[part::2]]
        pq.write_table(pa.Table.from_pylist(keys), folder / f"{part:05d}.parquet")
    for name, text in described(folder):
        (folder / name).with_suffix(".txt").write_text(text)


def write_parquet_with_failed_downloads(folder: Path) -> None:
    rows = [{"my.jpg": {"bytes": (folder / name).read_bytes()}, "caption": text} for name, text in described(folder)]
    for path in folder.glob("*.jpg"):
        path.unlink()
    table = [row for one in rows for row in (one, {"my.jpg": None, "caption": "a download that failed"})]
    pq.write_table(pa.Table.from_pylist(table), folder / "00000.parquet", row_group_size=7)


@pytest.mark.parametrize("write", [one for name, one in list(globals().items()) if name.startswith("write_")])
def test_ingest_keeps_what_init_counts(photos: Path, tmp_path: Path, write) -> None:
    """Checks that `ingest` keeps all 20 photos and captions that `init` counts, in each layout that a function write_*
    imitates."""
    write(photos)
    said = run_command("init", photos)
    assert "20 photos, 20 captions" in said and said.splitlines()[-1].endswith("jointspace run my-photos.yaml")
    written = yaml.safe_load(Path("my-photos.yaml").read_text())
    ingest(tmp_path / "run", photos, {"collection": written.get("collection", {})})
    manifest = Manifest(tmp_path / "run/manifest")
    counts = manifest.summary["counts"]["images"]
    missing = int(write is write_placeholders_first)
    assert counts == {"given": 20 + missing, "kept": 20, "rejected": missing, "duplicate": 0}
    texts = manifest.sentences["text"].to_pylist()
    assert sorted(int(re.search(r"\d+", text)[0]) for text in texts) == list(range(20))
    expected = {"messages": "30 rows of chat.json name no photo", "failed": "20 rows of Parquet files have no photo"}
    expected |= {"unquoted": "20 rows of captions.txt have ','", "windows": "1 table is read as WINDOWS-1252"}
    assert all(note in said for word, note in expected.items() if word in write.__name__)


def test_folders_called_after_splits_are_read_or_named(photos: Path, tmp_path: Path) -> None:
    caption(photos, "text-files")
    folders = {"Training": 12, "Validation": 5, "tests": 3}
    names = sorted(photos.glob("*.jpg"))
    for folder, count in folders.items():
        (photos / "data" / folder).mkdir(parents=True)
        for path in [names.pop() for _ in range(count)]:
            for file in (path, path.with_suffix(".txt")):
                file.rename(photos / "data" / folder / file.name)
    said = run_command("init", photos)
    assert "train 12, dev 5, test 3" in said
    assert "5 photos are in the split dev, after the name of their folder data/Validation" in said
    for path in photos.rglob("*.txt"):
        path.unlink()
    rows = "".join(f"{name}\t{text}\n" for name, text in described(photos))
    (photos / "captions.tsv").write_text(rows)
    said = run_command("init", photos, "--output", "other.yaml")
    assert "train 16, dev 2, test 2" in said and "Training, Validation, tests look like splits and are not read" in said
    assert "in splits.tsv" in said


@pytest.mark.parametrize("folders", [("cats/train", "cats/test", "dogs/train"), ("training set", "test set")])
def test_the_remedy_for_folders_called_after_splits_fits_the_format(photos: Path, folders) -> None:
    caption(photos, "text-files")
    for number, path in enumerate(sorted(photos.iterdir())):
        folder = photos / folders[number // 2 % len(folders)]
        folder.mkdir(parents=True, exist_ok=True)
        path.rename(folder / path.name)
    said = run_command("init", photos)
    assert "are not read as splits: put all photos into folders train, dev and test" in said


def test_an_album_that_is_called_after_a_split_is_named(photos: Path, tmp_path: Path) -> None:
    caption(photos, "text-files")
    for number, path in enumerate(sorted(photos.iterdir())):
        folder = photos / ("Garden", "Gallery")[number < 8]
        folder.mkdir(exist_ok=True)
        path.rename(folder / path.name)
    assert "4 photos are in the split gallery, after the name of their folder Gallery" in run_command("init", photos)


@pytest.mark.parametrize("count", [1, 4])
def test_too_few_captions_to_learn_from_lead_to_a_pretrained_model(photos: Path, tmp_path: Path, count: int) -> None:
    for path in sorted(photos.glob("*.jpg"))[count:]:
        path.unlink()
    caption(photos, "folder")
    said, error = refuse(photos)
    assert f"captions to train on ({count})" in said and "no configuration was written" in str(error)
    run_command("init", photos, "--encoder", "clip")
    run_command("ingest", "--run", tmp_path / "run", "--set-config", "my-photos.yaml", "--check-splits")
    assert Manifest(tmp_path / "run/manifest").summary["splits"] == {"gallery": count}


def test_obstacles_of_a_collection_are_reported_with_remedies(photos: Path, tmp_path: Path) -> None:
    inner = tmp_path / "unpacked"
    inner.mkdir()
    photos.rename(inner / photos.name)
    (inner / photos.name / "results.csv").write_text("image_name|comment\n00.jpg|a dog\n")
    said, _ = refuse(inner)
    assert f"jointspace init '{inner / photos.name}'" in said
    (inner / photos.name / "results.csv").rename(inner / photos.name / "metadata.csv")
    (inner / photos.name / "metadata.csv").write_text("before,after\n00.jpg,01.jpg\n02.jpg,03.jpg\n")
    said, _ = refuse(inner)
    assert "has file names in the columns before and after. Rename the right column to file" in said
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "list.csv").write_text("file,caption\n0.jpg,a dog\n")
    (packed / "photos.tar.gz").touch()
    assert "Unpack the archive photos.tar.gz first" in str(refuse(packed)[1])
    (packed / "list.csv").unlink()
    assert "Unpack the archive photos.tar.gz first" in str(refuse(packed)[1])
    (packed / "data-0.arrow").touch()
    assert "load_from_disk" in str(refuse(packed)[1])


def test_photos_that_need_an_extra_are_counted(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    caption(photos, "folder")
    for number in range(3):
        (photos / f"{number}.HEIC").touch()
    said, error = refuse(photos)
    assert re.search(r"3 photos cannot be used: HEIC photos need `\S*pip install 'jointspace\[heif\]'`", said)
    assert "3 of 23 photos cannot be used" in str(error) and "20 photos" in said


def test_the_reason_of_a_refusal_is_about_the_refused_input(photos: Path) -> None:
    (photos / "B:21.jpg").write_bytes(b"")
    texts = [("too long " * 300 if number < 5 else "a dog") for number in range(20)]
    (photos / "captions.tsv").write_text("".join(f"{number:02d}.jpg\t{text}\n" for number, text in enumerate(texts)))
    assert "5 of 20 captions cannot be used" in str(error := refuse(photos)[1]) and "(too long)" in str(error)


def test_the_copy_of_a_photo_with_the_shorter_name_is_kept(photos: Path, tmp_path: Path) -> None:
    for copy in ("07 (1).jpg", "07(1).jpg", "07-Kopie.jpg"):
        (photos / copy).write_bytes((photos / "07.jpg").read_bytes())
    ingest(tmp_path / "run", photos, {"collection": {"default_split": "gallery"}})
    kept = Manifest(tmp_path / "run/manifest").images["path"].to_pylist()
    assert kept == [f"{number:02d}.jpg" for number in range(20)]

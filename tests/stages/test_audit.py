"""Tests of the command `audit`, which lists the faults of a collection, and of `ingest`, which leaves out the listed
photos and captions.
"""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from scipy.ndimage import gaussian_filter
from synthetic_run import by_hand, ingest, make_stage, open_run, run_command, write_config

import jointspace
from pipeline.errors import UsageError
from pipeline.index.search import MAX_DRAWN
from pipeline.report.tables import is_probable
from pipeline.run.layout import Layout
from pipeline.storage.features import write_features
from pipeline.storage.manifest import Manifest
from pipeline.storage.shards import shard_path
from pipeline.storage.tables import read_table
from stages.operations.audit import _exclusions

COLOURS = ("red", "green", "blue", "black", "white", "pink", "grey")
THINGS = ("dog", "cat", "bird", "horse", "boat", "house", "tree", "car", "kite")
IMAGES = 252
WRONG = range(10, IMAGES, 20)
"""Numbers of the photos whose captions all belong to another photo. Photo i is the file i.png."""
PARTLY_WRONG = range(15, IMAGES, 20)
"""Numbers of the photos with one caption that belongs to another photo."""
COPY = "copy.png"
"""The name of a photo in the test split that is a mirrored copy of the training photo 5.png."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run of 252 photos with three captions each, and of a mirrored copy of one photo, and return its folder.
    Captions name a colour and a thing, and the features of a photo depend on both. The photos in WRONG have three wrong
    captions, and the photos in PARTLY_WRONG have one.
    """
    folder = tmp_path_factory.mktemp("audit")
    data = folder / "data"
    run = folder / "run"
    data.mkdir()
    lines = []
    for i in range(IMAGES):
        noise = np.random.default_rng(i).standard_normal((60, 80, 3))
        picture = Image.fromarray(np.clip(128 + 250 * gaussian_filter(noise, (2, 2, 0)), 0, 255).astype(np.uint8))
        picture.save(data / f"{i}.png")
        shown = [(i + IMAGES // 2 + 1 if (i in WRONG or (i in PARTLY_WRONG and n == 0)) else i) for n in range(3)]
        words = ("a {} {}", "the {} {} again", "some {} {} there")
        for text, j in zip(words, shown, strict=True):
            lines.append(f"{i}.png\t{len(lines)}\t{text.format(COLOURS[j % 7], THINGS[j % 9])}")
        if i == 5:
            ImageOps.mirror(picture).save(data / COPY)
    (data / "captions.tsv").write_text("\n".join([*lines, f"{COPY}\t0\ta {COLOURS[5]} {THINGS[5]}"]) + "\n")
    (data / "splits.tsv").write_text(f"{COPY}\ttest\n" + "".join(f"{i}.png\ttrain\n" for i in range(IMAGES)))
    run.mkdir()
    write_config(run, {"data_root": str(data), "demo": {"generate": False}, "text": {"min_count": 1}})
    ingest(run, data)
    manifest = Manifest(run / "manifest")
    numbers = [
        5 if row["path"] == COPY else int(row["path"].removesuffix(".png")) for row in manifest.images.to_pylist()
    ]
    features = np.hstack([np.eye(7)[np.array(numbers) % 7], np.eye(9)[np.array(numbers) % 9]]) + 0.1
    features += 0.3 * np.random.default_rng(0).random((IMAGES + 1, 16))[numbers]
    path = shard_path(run / "features/colour", 0)
    write_features(path, features.astype(np.float32), np.arange(IMAGES + 1), by_hand(run), {})
    make_stage("prepare_encoder", run, "text/encoders/tfidf")
    make_stage("encode_sentences", run, "tfidf")
    return run


def test_audit_finds_split_leakage_and_wrong_captions_and_ingest_leaves_them_out(run: Path, tmp_path: Path) -> None:
    printed = run_command("audit", run, "--exclude", tmp_path / "out.txt")
    findings = list(filter(is_probable, read_table(run / "audit/audit.parquet", "audit")[0].to_pylist()))
    (leak,) = [finding for finding in findings if finding["kind"] == "leak"]
    assert {leak["image"], leak["other_image"]} == {"5.png", COPY}
    whole, single = ([one for one in findings if one["kind"] == kind] for kind in ("captions", "caption"))
    for found, wrong, captions in ((whole, WRONG, 3), (single, PARTLY_WRONG, 1)):
        right = [one for one in found if int(one["image"].removesuffix(".png")) in wrong]
        assert len(right) >= 0.5 * len(wrong) and len(right) >= 0.75 * len(found)
        assert {len(one["captions"]) for one in found} == {captions}
    number = int(whole[0]["image"].removesuffix(".png"))
    assert COLOURS[number % 7] in whole[0]["rather"] or THINGS[number % 9] in whole[0]["rather"]
    assert "1  near-duplicates in different splits" in printed

    lines = (tmp_path / "out.txt").read_text().splitlines()
    live = [line for line in lines if not line.startswith("#")]
    captions = {f"{one['image']}\t{one['captions'][0]}" for one in single}
    reliable = {f"{one['image']}\t{one['captions'][0]}" for one in single if one["reliable"]}
    gone = {"5.png", *(one["image"] for one in whole if one["reliable"])}
    assert {line for line in live if "\t" in line} == reliable and {line for line in live if "\t" not in line} == gone
    assert {line[2:] for line in lines if line.startswith("# ") and "\t" in line} == captions - reliable
    wrong = {f"{number}.png" for number in PARTLY_WRONG}
    assert len(reliable) > 1 and sum(line.partition("\t")[0] in wrong for line in reliable) >= 0.75 * len(reliable)

    with pytest.raises(UsageError, match="out.txt already exists. A new list would not have the captions"):
        run_command("audit", run, "--exclude", tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text().splitlines() == lines

    data = Path(open_run(run).config.data_root)
    ingest(tmp_path / "again", data, {"collection": {"takedown": str(tmp_path / "out.txt")}})
    before = Manifest(run / "manifest")
    after = Manifest(tmp_path / "again/manifest")
    assert set(before.images["path"].to_pylist()) - set(after.images["path"].to_pylist()) == gone
    left = Counter(captions_of(before)) - Counter(captions_of(after))
    assert {line for line in left if line.partition("\t")[0] not in gone} == reliable - gone
    assert after.summary["warnings"] == []


def test_the_name_of_a_photo_cannot_add_a_line() -> None:
    finding = {"kind": "captions", "image": "a.png\nb.png", "false_discovery_rate": 0.2}
    assert [*_exclusions([finding], 0.1)][-1] == "# a.png b.png"


def test_decided_pairs_are_not_listed_again_and_wrong_pairs_leave_the_collection(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    lines = ["10.png\t\twrong", "", "30.png\t\tright", "35.png\tgone\tunsure", "no.png\t\twrong"]
    before = Manifest(folder / "manifest")
    wrong = next(line for line in captions_of(before) if line.startswith("15.png"))
    lines[1] = f"{wrong}\twrong"
    header = "image\tcaption\tdecision\ttime"
    (folder / "audit").mkdir(exist_ok=True)
    (folder / "audit/decisions.tsv").write_text("\n".join([header, *(f"{line}\t2024-01-31" for line in lines)]))
    printed = run_command("audit", folder, "--exclude", tmp_path / "out.txt")
    assert "5  pairs with a decision, which are not listed again: 3 wrong, 1 right, 1 unsure" in printed
    assert "The collection no longer has 1 right or unsure pair of" in caplog.text
    listed = {line.removeprefix("# ") for line in (tmp_path / "out.txt").read_text().splitlines()}
    assert not listed & {"10.png", "30.png", wrong} and len(listed) > 10

    caplog.clear()
    with caplog.at_level("INFO"):
        ingest(folder, Path(open_run(folder).config.data_root))
    after = Manifest(folder / "manifest")
    assert {*before.images["path"].to_pylist()} - {*after.images["path"].to_pylist()} == {"10.png"}
    left = Counter(captions_of(before)) - Counter(captions_of(after))
    assert {line for line in left if not line.startswith("10.png")} == {wrong}
    assert "leave out 1 photo and 1 caption." in caplog.text
    (warning,) = after.summary["warnings"]
    assert "1 of 3 wrong pairs match no photo and caption of the collection, such as 'no.png'" in warning


def test_the_audit_from_python_has_the_same_findings_without_decided_pairs(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "audit/decisions.tsv").unlink(missing_ok=True)
    findings = jointspace.audit(folder)
    rows = read_table(folder / "audit/audit.parquet", "audit")[0].to_pylist()
    assert findings == rows and {finding["kind"] for finding in findings} >= {"leak", "caption", "captions"}
    html = findings._repr_html_()
    assert html.count("<img src=") == html.count("<figure") == MAX_DRAWN + 1 < len(findings), "the copy has two photos"
    decided = next(finding for finding in findings if finding["kind"] == "captions")
    (folder / "audit/decisions.tsv").write_text(f"{decided['image']}\t\tright\t2024-01-31\n")
    assert jointspace.audit(folder) == [row for row in rows if row != decided]


def test_a_report_that_cannot_be_made_does_not_stop_an_audit(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The report cannot be made here, because its inputs are missing. An index that `remove` has changed would raise an
    error of the same class.
    """
    layout = Layout(shutil.copytree(run, tmp_path / "run"))
    layout.report.path.parent.mkdir()
    layout.report.path.write_text("an earlier report")
    printed = run_command("audit", layout.root, "--exclude", tmp_path / "out.txt")
    assert (tmp_path / "out.txt").exists() and "The report shows the findings" not in printed
    assert f"Make the report with `jointspace run {layout.config}`" in caplog.text
    assert layout.report.path.read_text() == "an earlier report"


def captions_of(manifest: Manifest) -> list[str]:
    """Return a line for each caption of the manifest: the path of its photo, a tab, and the text."""
    names = manifest.images["path"].to_pylist()
    texts = manifest.sentences["text"].to_pylist()
    return [f"{names[owner]}\t{text}" for owner, text in zip(manifest.sentence_images.tolist(), texts, strict=True)]

"""Runs with a dual encoder on photos with and without captions: all stages succeed, and the photos are found."""

import json
import shutil
import tarfile
from itertools import product
from pathlib import Path

import pytest
import torch
import yaml
from synthetic_colours import COLOURS, draw
from synthetic_run import ingest, make_stage, run_command
from tiny_library_models import save_dual, save_open_clip

import jointspace
from pipeline.errors import IntegrityError
from pipeline.index.calibration import BACKGROUND, changed_share
from pipeline.run import Run
from pipeline.run.reading.requirements import _jobs
from pipeline.run.reading.results import closing_lines
from pipeline.run.runner import run_stage
from pipeline.storage.index_shard import IndexShard
from pipeline.storage.stored_index import open_index
from stages.catalogue import declared

SIDE = 16
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "picture", *COLOURS)
CLIP = {"kind": "transformers", "architecture": "clip"}
CONFIG = {
    "name": "alone",
    "models": ["zero-shot"],
    "demo": {"generate": False},
    "encoders": [{"name": "dual", **CLIP}],
    "text_encoders": [{"name": "dual-text", **CLIP}],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run of 60 photos without captions, run all stages with a dual encoder and the model `zero-shot`, and
    return the folder of the run.
    """
    tmp_path = tmp_path_factory.mktemp("alone")
    run = tmp_path / "results/alone"
    run.mkdir(parents=True)
    draw(tmp_path / "photos", 60, 0)
    save_dual("CLIP", tmp_path / "weights/clip", SIDE, WORDS)
    places = {"data_root": str(tmp_path / "photos"), "weights_root": str(tmp_path / "weights")}
    (run / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **places}))
    ingest(run, tmp_path / "photos")
    for stage, *names in (
        ("prepare_encoder", "dual"),
        ("extract", "dual"),
        ("prepare_encoder", "dual-text"),
        ("encode_sentences", "dual-text"),
        ("adopt", "zero-shot"),
        ("embed", "zero-shot"),
        *(("evaluate", "zero-shot", *names) for names in product(("dev", "test"), ("all-sentences", "first-sentence"))),
        ("summarise",),
        ("build_index", "zero-shot"),
        ("report",),
    ):
        make_stage(stage, run, *names)
    return run


def test_photos_without_captions_are_indexed_and_found(run: Path, tmp_path: Path) -> None:
    index = IndexShard(run / "index/zero-shot").card.images
    assert index is not None and index.measured_with == "phrases"
    assert '<td class="text">phrases</td>' in (run / "report/index.html").read_text()
    (first, *_) = json.loads(run_command("explain", run, "0", "--json"))["images"]
    notes = [place["note"] for place in first["places"] if place["file"].endswith("index/zero-shot/images.parquet")]
    assert notes == ["index recall@10 1.000, measured with phrases"]
    hits = jointspace.load(run / "index/zero-shot").search("a red picture", k=10)
    assert len(hits) == 10
    assert json.loads((run / "evaluation/zero-shot.test.all-sentences.json").read_text())["n_images"] == 0
    assert json.loads((run / "evaluation/summary.json").read_text()) == []
    draw(tmp_path / "others", 8, 1)
    applied = jointspace.load(run / "index/zero-shot").apply(tmp_path / "others", tmp_path / "applied")
    assert len(applied.search("a red picture", k=20)) == 8
    assert applied.card["images"]["measured_with"] == "phrases"
    assert applied.search(image=next((tmp_path / "others").glob("red-*.png")), k=1)[0].row["path"].startswith("red-")
    for folder in (run / "index/zero-shot", tmp_path / "applied"):
        copies = list(folder.glob("**/encoders/dual/library/model.safetensors"))
        original = (run / "encoders/dual/library/model.safetensors").read_bytes()
        assert copies and all(copy.read_bytes() == original for copy in copies)
    (changed,) = (tmp_path / "applied").glob("**/text_encoders/dual-text/library/config.json")
    content = changed.read_text()
    changed.unlink()  # It is a hard link to the file of the first index, which must not change.
    changed.write_text(content.replace("clip", "evil", 1))
    with pytest.raises(IntegrityError, match="changed"):
        jointspace.load(tmp_path / "applied").search("a red picture")
    report, search = closing_lines(run)
    assert report == f"report: {run}/report/index.html" and f"search {run}/index/zero-shot" in search


def test_photos_without_captions_get_a_line_by_captions_that_a_user_writes(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run / "index/zero-shot", tmp_path / "index")
    names = sorted(row["path"] for row in open_index(folder).table("images").to_pylist())
    captions = {name: f"a {name.partition('-')[0]} picture" for name in names}
    rows = "".join(f"{name},{caption}\n" for name, caption in captions.items())
    (tmp_path / "pairs.csv").write_text(f"file,caption\n{rows}")
    assert jointspace.load(folder).search("a red picture").judgement is None
    run_command("calibrate", folder, tmp_path / "pairs.csv")
    index = jointspace.load(folder)
    found = 0
    for name, caption in captions.items():
        answer = index.search(caption, k=60)
        found += name in [hit.row["path"] for hit in answer[: answer.judgement.likely]]
    assert found >= 51, "85 percent of the captions that set the line, which may miss one of ten others"

    draw(tmp_path / "others", 8, 1)
    (tmp_path / "shards").mkdir()
    with tarfile.open(tmp_path / "shards/others.tar", "w") as archive:
        for path in sorted((tmp_path / "others").iterdir()):
            archive.add(path, path.name)
    applied = index.apply(tmp_path / "shards/others.tar", tmp_path / "applied").stored
    applied.check()
    assert applied.card.calibration is None and BACKGROUND not in applied.card.files, "these are other photos"
    run_command("add", folder, tmp_path / "others")
    grown = open_index(folder)
    grown.check()
    assert len(grown.shards) == 2 and changed_share(grown) == pytest.approx(8 / 68)
    assert jointspace.load(folder).search("a red picture").judgement is not None


def write_captioned_photos(folder: Path, captioned: int, dev: int = 0) -> None:
    """Draw 40 photos into `folder`, and write captions.tsv for the first `captioned` photos.

    If `dev` is not 0, draw `dev` more photos for each of the splits dev and test, and write splits.tsv with the split
    of each photo.
    """
    names = draw(folder, 40 + 2 * dev, 0)
    captions = (f"{name}\t0\ta {name.partition('-')[0]} picture\n" for name in names[:captioned])
    (folder / "captions.tsv").write_text("".join(captions))
    if dev:
        splits = ["train"] * 40 + ["dev"] * dev + ["test"] * dev
        lines = (f"{name}\t{split}\n" for name, split in zip(names, splits, strict=True))
        (folder / "splits.tsv").write_text("".join(lines))


def run_with_clip(folder: Path) -> Path:
    """Run `init --encoder clip` and all stages on the photos in `folder / "photos"`, with a small random model in place
    of the weights of CLIP. Return the folder of the run.
    """
    run = folder / "results/photos"
    run.mkdir(parents=True)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        save_open_clip(folder / "weights/ViT-B-32", SIDE, 49408)
    run_command("init", folder / "photos", "--encoder", "clip", "--output", folder / "photos.yaml")
    values = yaml.safe_load((folder / "photos.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**values, "weights_root": str(folder / "weights")}))
    jobs = _jobs(declared(), Run(run))
    for stage, names in sorted(
        jobs, key=lambda job: job[0].name != "ingest"
    ):  # `ingest` comes first, because every stage with shards needs the manifest.
        run_stage(Run(run), stage, names)
    return run


def test_result_of_clip_with_captions_is_at_least_that_of_zero_shot_on_dev(tmp_path: Path) -> None:
    write_captioned_photos(tmp_path / "photos", 140, dev=50)
    run = run_with_clip(tmp_path)
    sums = {}
    for model in ("zero-shot", "zero-shot-csls", "ncca", "best"):
        measured = json.loads((run / f"evaluation/{model}.dev.all-sentences.json").read_text())
        directions = (measured["image_to_sentence"], measured["sentence_to_image"])
        sums[model] = sum(one[f"recall@{k}"] for one in directions for k in (1, 5, 10))
        found = jointspace.load(run / f"index/{model}").search("a red picture", k=5, match_text=False)
        assert found.judgement is not None, f"{model} has a line of likely matches"
    chosen = closing_lines(run)[-1].partition("photos/index/")[2].split()[0]
    assert sums[chosen] == max(sums.values()), "the suggested command searches the best model on dev"
    assert sums["zero-shot"] <= sums["zero-shot-csls"] <= sums["best"]
    assert sums["zero-shot"] < sums["ncca"], "random weights find less than a model that has learned the colours"


@pytest.mark.parametrize(("captioned", "evaluated"), [(4, []), (30, ["zero-shot"])])
def test_clip_with_few_captions_is_used_without_training(tmp_path: Path, captioned: int, evaluated: list[str]) -> None:
    """Only 4 or 30 of 40 photos have captions. With 4 captions there is no dev split, and with 30 the dev split is too
    small to choose a model, but the model is evaluated.
    """
    write_captioned_photos(tmp_path / "photos", captioned)
    run = run_with_clip(tmp_path)
    assert [path.name for path in (run / "index").iterdir()] == ["zero-shot"]
    assert "photos/index/zero-shot" in closing_lines(run)[-1]
    assert len(jointspace.load(run / "index/zero-shot").search("a red picture", k=50)) == 40
    measured = json.loads((run / "evaluation/summary.json").read_text())
    assert list(dict.fromkeys(evaluation["model"] for evaluation in measured)) == evaluated

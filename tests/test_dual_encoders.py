"""Tests a run of photos without captions with a dual encoder: all stages succeed, and the index finds the photos."""

import json
import shutil
import tarfile
from itertools import product
from pathlib import Path

import pytest
import yaml
from synthetic_colours import COLOURS, draw
from synthetic_run import ingest, make_stage, run_command
from tiny_library_models import save_dual

import jointspace
from pipeline.errors import IntegrityError
from pipeline.index.calibration import BACKGROUND, changed_share
from pipeline.run.reading.results import closing_lines
from pipeline.storage.index_shard import IndexShard
from pipeline.storage.stored_index import open_index

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
    """A run of 60 photos without captions, with all stages of the dual encoder."""
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
    changed.unlink()  # it is a hard link to the file of the first index
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

"""Tests a run of photos without captions with a dual encoder: all stages succeed, and the index finds the photos."""

import json
from itertools import product
from pathlib import Path

import pytest
import yaml
from synthetic_colours import COLOURS, draw
from synthetic_run import ingest, make_stage, run_command
from tiny_library_models import save_dual

import jointspace
from pipeline.errors import IntegrityError
from pipeline.run.reading.results import closing_lines
from pipeline.storage.index_shard import IndexShard

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


def test_photos_without_captions_are_indexed_and_found(tmp_path: Path) -> None:
    run = tmp_path / "results/alone"
    run.mkdir(parents=True)
    draw(tmp_path / "photos", 40, 0)
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

"""Photographs without sentences under a model of images and text: `jointspace run` ends well, with an index that finds
them; and what is wrong with its configuration is said before any job."""

import json
import shlex
from itertools import product
from pathlib import Path

import pytest
import warm
import yaml
from made_up import ingest, make_stage
from made_up_colours import COLOURS, draw
from made_up_libraries import save_dual

import jointspace
from stages.closing import closing_lines

SIDE, WORDS = 16, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "picture", *COLOURS)


def store_clip(weights: Path) -> dict[str, object]:
    """A tiny CLIP of transformers with random weights in a folder; its two sides as encoders."""
    save_dual("CLIP", weights / "clip", SIDE, WORDS)
    named = {"kind": "transformers", "architecture": "clip"}
    return {
        "encoders": [{"name": "dual", **named}],
        "text_encoders": [{"name": "dual-text", "kind": "transformers", "transformers": {"architecture": "clip"}}],
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw(tmp_path / "photos", 40, 0)
    (tmp_path / "weights").mkdir()
    return tmp_path


def write_config(folder: Path, encoders: dict[str, object]) -> None:
    values = {"name": "alone", "data_root": "photos", "weights_root": str(folder / "weights"), "models": ["zero-shot"]}
    (folder / "alone.yaml").write_text(yaml.safe_dump({**values, "demo": {"generate": False}, **encoders}))


def test_photographs_without_sentences_are_indexed_and_found(folder: Path) -> None:
    """By the stages of `run`, one after the other."""
    run = folder / "results/alone"
    run.mkdir(parents=True)
    write_config(folder, store_clip(folder / "weights"))
    (folder / "alone.yaml").rename(run / "config.yaml")
    ingest(run, folder / "photos")
    for stage, *names in (
        ("prepare_encoder", "dual"),
        ("extract", "dual"),
        ("prepare_text_encoder", "dual-text"),
        ("encode_sentences", "dual-text"),
        ("adopt", "zero-shot"),
        ("embed", "zero-shot"),
        *(("evaluate", "zero-shot", *names) for names in product(("dev", "test"), ("all-sentences", "first-sentence"))),
        ("summarise",),
        ("build_index", "zero-shot"),
        ("report",),
    ):
        make_stage(stage, run, *names)
    hits = jointspace.load(run / "index/zero-shot").search("a red picture", k=10)
    assert len(hits) == 10
    assert json.loads((run / "evaluation/zero-shot.test.all-sentences.json").read_text())["n_images"] == 0
    assert json.loads((run / "evaluation/summary.json").read_text()) == []
    report, search = closing_lines(run)
    assert report == f"report: {run}/report/index.html" and f"search --index {run}/index/zero-shot" in search


@pytest.mark.slow
def test_a_run_of_photographs_without_sentences_ends_well(folder: Path) -> None:
    write_config(folder, store_clip(folder / "weights"))
    done = warm.jointspace(folder, "run", "alone.yaml", "--cores", "1")
    assert done.returncode == 0, done.stderr
    search = shlex.split(done.stdout.splitlines()[-1].removeprefix("search: "))
    assert len(warm.jointspace(folder, *search[1:]).stdout.splitlines()) >= 10

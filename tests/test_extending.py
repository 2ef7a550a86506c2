"""The checklists of docs/extending.md: one new part of each kind, added as they say."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from made_up import build_bundle, ingest, make_run, make_stage
from made_up_training import add_moments, make_trainable, read_model
from PIL import Image

from pipeline.collections.formats import FORMATS
from pipeline.collections.records import ImageRecord, Options, SentenceRecord
from pipeline.images import proposals
from pipeline.images.boxes import NONE, Candidates
from pipeline.images.proposals import ProposalSettings
from pipeline.run.run import Run
from pipeline.settings.images import Grid, Search
from pipeline.settings.section import merge
from pipeline.storage.atomic import read_json

ROOT = Path(__file__).parents[1]
TURNED = '''"""The registered model `turned`: a gru whose space may be turned round."""

from pipeline.models.neural.word_models import GRU
from pipeline.settings.models import Train


class TurnedTrain(Train):
    """`sign`: of every embedding."""

    sign: int = 1


class Turned(GRU):
    @classmethod
    def begin(cls, task):
        assert task.settings.margin == 0.3 and task.settings.sign == -1
        return super().begin(task)
'''
MIRRORED = '''"""The registered model `mirrored`: a normalized CCA whose space is turned round."""

from pipeline.models.linear.cca import NormalizedCCA


class Mirrored(NormalizedCCA):
    def embed_images(self, features):
        return -super().embed_images(features)

    def embed_sentences(self, sentences):
        return -super().embed_sentences(sentences)
'''
MODELS = {
    "turned": (
        TURNED,
        '_trained("turned", "turned:Turned", "pipeline.models.neural.turned:TurnedTrain", defaults="gru"),',
        {"loss": "ranking", "margin": 0.3, "sign": -1},
    ),
    "mirrored": (MIRRORED, '_fitted("mirrored", "mirrored:Mirrored", grid=GRID),', {"fit": {"eigenvalue_power": [3]}}),
}
"""Name -> its file, its line of the registry, and a variant's hyperparameters."""


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_a_file_and_a_line_of_the_registry(name: str, tmp_path: Path) -> None:
    source, line, hyperparameters = MODELS[name]
    tree, run = tmp_path / "tree", make_trainable(tmp_path / "run")
    for part in ("pipeline", "stages", "config"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    made_by = "fit" if "_fitted" in line else "train"
    (tree / "pipeline/models" / {"fit": "linear", "train": "neural"}[made_by] / f"{name}.py").write_text(source)
    registry = tree / "pipeline/specs/models.py"
    text, head = registry.read_text(), "MODELS: tuple[ModelSpec, ...] = (\n"
    registry.write_text(text.replace(head, f"{head}    {line}\n"))
    add_moments(run, {"fit": {"dimensions": [8], "image_ridge": [0.1], "text_ridge": [0.1]}})
    variants = {"models": ["ours"], "variants": {"ours": {"model": name, **hyperparameters}}}
    config = run / "config.yaml"
    config.write_text(yaml.safe_dump(merge(yaml.safe_load(config.read_text()), variants)))

    def jointspace(*words: object) -> str:
        program = [sys.executable, "-c", "from stages.cli import cli; cli()"]
        given = {"cwd": run, "env": {**os.environ, "PYTHONPATH": str(tree)}}
        result = subprocess.run([*program, *map(str, words)], capture_output=True, text=True, **given)
        assert result.returncode == 0, result.stderr
        return result.stdout

    jointspace(made_by, "ours", "--run", run)
    recorded = read_model(run, "ours").details
    assert recorded["registered"] == name
    assert recorded["hyperparameters"]["seed"] == 0
    stated = {**recorded["hyperparameters"].get("settings", {}), "fit": recorded["hyperparameters"].get("fit", {})}
    assert merge(stated, hyperparameters) == stated
    jointspace("embed", "ours", "--run", run)
    jointspace("evaluate", "ours", "dev", "all-sentences", "--run", run)
    assert read_json(run / "evaluation/ours.dev.all-sentences.json")["model"] == "ours"
    jointspace("build-index", "ours", "--run", run)
    assert "horse-" in jointspace("search", "a horse", "--index", "index/ours", "--top", 1)


def test_an_encoder_is_an_entry_of_the_configuration(tmp_path: Path) -> None:
    entry = "{name: small, architecture: shufflenet_v2_x0_5, weights: untrained, resize: 64, crop: null}"
    (tmp_path / "config.yaml").write_text(f"encoders: [{entry}]")
    make_stage("prepare_encoder", tmp_path, "small")
    assert Run(tmp_path).encoder("small").details["dim"] == 1024


def test_a_source_of_proposals_is_a_function_in_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def halves(pixels: np.ndarray, known: Candidates) -> Candidates:
        height, width = pixels.shape[:2]
        boxes = np.array([[0, 0, width / 2, height], [width / 2, 0, width, height]], np.float32)
        return Candidates(boxes, np.array([1, 0.5], np.float32))

    monkeypatch.setattr(proposals, "METHODS", {**proposals.METHODS, "halves": lambda settings: halves})
    settings = ProposalSettings(
        "halves", Grid(scales=(0.5,), aspects=(1,), overlap=0.5), Search(mode="fast", width=100)
    )
    found = proposals.proposer(settings)(np.zeros((20, 40, 3), np.uint8), NONE)
    np.testing.assert_array_equal(found.boxes, [[0, 0, 20, 20], [20, 0, 40, 20]])


def test_an_index_type_is_a_factory_string(tmp_path: Path) -> None:
    run = make_run(tmp_path, images=240)
    build_bundle(run, {"index": {"exact_limit": 100, "candidates": ["HNSW8"], "recall_floor": 0.5}})
    assert read_json(run / "bundle" / "card.json")["images"]["factory"] == "HNSW8"


def test_a_format_is_a_reader_in_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(root: Path, options: Options):
        yield ImageRecord("red.png", "red.png", options.default_split, "list")
        yield SentenceRecord("red.png", 0, "a red thing", "list", 1)

    monkeypatch.setitem(FORMATS, "folder", read)
    (tmp_path / "data").mkdir()
    Image.new("RGB", (32, 32), "red").save(tmp_path / "data" / "red.png")
    ingest(tmp_path, tmp_path / "data")
    assert read_json(tmp_path / "manifest" / "manifest.json")["counts"]["images"]["kept"] == 1

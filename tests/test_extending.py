"""The checklists of docs/extending.md: one new part of each kind, added as they say."""

from pathlib import Path

import numpy as np
import pytest
from made_up import build_bundle, make_run, run_command
from PIL import Image

from pipeline.collections.formats import FORMATS
from pipeline.collections.records import ImageRecord, Options, SentenceRecord
from pipeline.images import proposals
from pipeline.images.boxes import NONE, Candidates
from pipeline.images.proposals import Grid, ProposalSettings, Search
from pipeline.models.linear.cca import NormalizedCCA
from pipeline.specs import REGISTRY
from pipeline.storage.atomic import read_json
from pipeline.storage.parameters import ENCODER, read_parameters


class Mirrored(NormalizedCCA):
    """A model of this file: a normalized CCA whose space is turned round."""

    def embed_images(self, features):
        return -super().embed_images(features)

    def embed_sentences(self, sentences):
        return -super().embed_sentences(sentences)


def test_a_model_is_evaluated_indexed_and_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "mirrored", f"{__name__}:Mirrored")
    run = make_run(tmp_path, "mirrored")
    given = ("--manifest", run / "manifest", "--embeddings", run / "embeddings/mirrored", "--split", "test")
    run_command("evaluate", *given, "--protocol", "all-sentences", "--output", run / "evaluation.json")
    assert read_json(run / "evaluation.json")["model"] == "mirrored"
    found = run_command("search", "a horse", "--index", build_bundle(run, model="mirrored"), "--top", 1)
    assert "horse-" in found


def test_an_encoder_is_an_entry_of_the_configuration(tmp_path: Path) -> None:
    entry = "{name: small, architecture: shufflenet_v2_x0_5, weights: untrained, resize: 64, crop: null}"
    (tmp_path / "config.yaml").write_text(f"encoders: [{entry}]")
    given = ("--name", "small", "--config", tmp_path / "config.yaml", "--output", tmp_path / "small")
    run_command("prepare_encoder", *given)
    assert read_parameters(tmp_path / "small" / "model.safetensors", ENCODER).details["dim"] == 1024


def test_a_source_of_proposals_is_a_function_in_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def halves(pixels: np.ndarray, known: Candidates) -> Candidates:
        height, width = pixels.shape[:2]
        boxes = np.array([[0, 0, width / 2, height], [width / 2, 0, width, height]], np.float32)
        return Candidates(boxes, np.array([1, 0.5], np.float32))

    monkeypatch.setattr(proposals, "METHODS", {**proposals.METHODS, "halves": lambda settings: halves})
    settings = ProposalSettings("halves", Grid((0.5,), (1,), 0.5), Search("fast", 100))
    found = proposals.proposer(settings)(np.zeros((20, 40, 3), np.uint8), NONE)
    np.testing.assert_array_equal(found.boxes, [[0, 0, 20, 20], [20, 0, 40, 20]])


def test_an_index_type_is_a_factory_string(tmp_path: Path) -> None:
    run = make_run(tmp_path, images=240)
    (run / "config.yaml").write_text("index: {exact_limit: 100, candidates: [HNSW8], recall_floor: 0.5}")
    build_bundle(run, "--config", run / "config.yaml")
    assert read_json(run / "bundle" / "card.json")["images"]["factory"] == "HNSW8"


def test_a_format_is_a_reader_in_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(root: Path, options: Options):
        yield ImageRecord("red.png", "red.png", options.default_split, "list")
        yield SentenceRecord("red.png", 0, "a red thing", "list", 1)

    monkeypatch.setitem(FORMATS, "folder", read)
    (tmp_path / "data").mkdir()
    Image.new("RGB", (32, 32), "red").save(tmp_path / "data" / "red.png")
    run_command("ingest", "--root", tmp_path / "data", "--processes", 0, "--output", tmp_path / "manifest")
    assert read_json(tmp_path / "manifest" / "manifest.json")["counts"]["images"]["kept"] == 1

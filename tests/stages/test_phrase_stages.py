"""`embed-phrases` and `rank-phrases` on some scenes of the demo, and what the report draws of them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from made_up import MADE_BY, by_hand, make_stage
from made_up_sets import write_region_shard
from made_up_training import encode_parses

from pipeline.models.linear.views import ImageView
from pipeline.models.neural.hmlstm import HMLSTM
from pipeline.models.neural.training import seeded
from pipeline.storage.commit import read_record
from pipeline.storage.json_files import read_json
from pipeline.storage.manifest import Manifest
from pipeline.storage.pairs import split_pairs
from pipeline.storage.parameters import MODEL, read_parameters, write_parameters
from pipeline.storage.phrases import PhraseVectors, read_names, write_phrases
from pipeline.storage.records import read_measured
from pipeline.storage.tables import vectors_column
from pipeline.storage.texts import read_packed_trees
from pipeline.text.trees import Trees

DIM = 12
PHRASES = "phrases/hmlstm/test"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve scenes, parsed, with regions on their boxes, and the phrases of an untrained hmlstm."""
    run = tmp_path_factory.mktemp("made")
    demo = {"train": 6, "dev": 2, "test": 4, "weak": 0}
    settings = {
        "data_root": str(run / "data"), "demo": demo, "tokens": {"min_count": 1}, "evaluate": {"bootstrap": 20},
        "encoders": [{"name": "eyes", "architecture": "squeezenet1_1", "weights": "untrained"}],
        "models": ["hmlstm"], "regions": {"encoders": ["eyes"]},
    }  # fmt: skip
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    make_stage("make_demo", run)
    make_stage("ingest", run)
    make_stage("parse", run)
    encode_parses(run)
    manifest = Manifest(run / "manifest")
    vocabulary, table = (read_json(run / f"text/{name}.json") for name in ("tokens", "labels"))
    add_regions(run, manifest)
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((len(vocabulary["terms"]) + 1, 8), dtype=np.float32)
    learned = {"noun_phrase": table["phrases"].index("NP")}
    mean = np.zeros(DIM, np.float32)
    with seeded(0):
        network = HMLSTM.make_network(torch.tensor(mean), torch.tensor(vectors), 16, 0.0, learned, "cosine")
    model = HMLSTM(ImageView(("eyes",), (DIM,), ("l2",)), network, learned)
    told = {
        "model": "hmlstm",
        "registered": "hmlstm",
        "vocabulary": vocabulary["fingerprint"],
        "labels": table["fingerprint"],
        "regions": {"eyes": MADE_BY},
    }
    path = run / "models/hmlstm/model.safetensors"
    write_parameters(path, MODEL, model.tensors(), settings=model.settings(), provenance=by_hand(run), details=told)
    make_stage("embed_phrases", run, "hmlstm", "test")
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "run")


def add_regions(run: Path, manifest: Manifest) -> None:
    """The whole of each image, and each of its boxes."""
    rng, boxes = np.random.default_rng(1), []
    owners = manifest.boxes["image_id"].to_numpy()
    corners = np.stack([manifest.boxes[name].to_numpy() for name in ("x1", "y1", "x2", "y2")], axis=1)
    for row in manifest.images.to_pylist():
        own = corners[owners == row["image_id"]]
        boxes.append(np.vstack([[[0, 0, row["width"], row["height"]]], own]))
    write_region_shard(run, "eyes", boxes, [rng.standard_normal((len(own), DIM)) for own in boxes])


def test_phrases_and_regions_are_those_of_the_model(run: Path) -> None:
    found, manifest = PhraseVectors(run / PHRASES), Manifest(run / "manifest")
    pairs = split_pairs(manifest, "test")
    assert (found.model, found.split) == ("hmlstm", "test")
    texts = manifest.sentences["text"].take(found.phrases["sentence_id"].to_numpy()).to_pylist()
    for text, phrase, head in zip(texts, *(found.phrases[name].to_pylist() for name in ("text", "head")), strict=True):
        assert phrase in text.lower() and head in phrase.split()
    assert set(found.phrases["image_id"].to_pylist()) == set(pairs.image_id.tolist())
    stored = read_parameters(run / "models/hmlstm/model.safetensors", MODEL)
    model = HMLSTM.from_parts(stored.settings, stored.tensors)
    trees = Trees(**read_packed_trees(run / "text/trees", "phrase", [0])).take(pairs.sentence_id)
    np.testing.assert_allclose(found.phrase_vectors, model.embed_phrases(trees), atol=1e-6)
    assert len(found.region_vectors) == len(found.boxes) and found.regions["number"].to_pylist().count(0) == 4


def rank(run: Path, *more: object, result: str = "hmlstm.test.json") -> dict:
    make_stage("rank_phrases", run, "hmlstm", "test", *more)
    return json.loads((run / "evaluation/phrases" / result).read_text())


def know(run: Path) -> None:
    """Replace the vectors by those of the kind that a phrase's head names, or that a box shows."""
    names, manifest = read_names(run / "data" / "names.tsv"), Manifest(run / "manifest")
    kinds = sorted(names)
    found = PhraseVectors(run / PHRASES)
    corner = ("image_id", "x1", "y1")
    label = {tuple(box[c] for c in corner): box["label"] for box in manifest.boxes.to_pylist()}
    rows = found.regions.to_pylist()
    shown = [label.get(tuple(row[c] for c in corner)) if row["number"] else None for row in rows]
    eye = np.eye(len(kinds), dtype=np.float32)
    regions = np.stack([eye[kinds.index(kind)] if kind else 0 * eye[0] for kind in shown])
    phrases = np.stack([sum(eye[i] for i, kind in enumerate(kinds) if head in names[kind]) + 0 * eye[0]
                        for head in found.phrases["head"].to_pylist()])  # fmt: skip
    tables = [
        table.append_column("vector", vectors_column(vectors))
        for table, vectors in ((found.regions, regions), (found.phrases, phrases))
    ]
    details = {"model": "hmlstm", "split": "test", "dim": len(kinds)}
    write_phrases(run / PHRASES, *tables, provenance=by_hand(run), details=details)


def test_a_ranking_beside_chance(run: Path) -> None:
    value = rank(run)
    assert value["model"] == "hmlstm" and value["split"] == "test"
    assert 10 < value["n_named"] < value["n_phrases"] and value["n_without_right_region"] == 0
    assert 0 < value["correspondence"]["chance"] < 100
    for direction in ("phrase_to_region", "region_to_phrase"):
        for scope in ("image", "split"):
            assert value[direction][scope]["recall@1"] <= value[direction][scope]["recall@10"]
            assert {"recall@5", "median_rank", "mean_rank", "chance", "n"} <= set(value[direction][scope])
    path = run / "evaluation/phrases/hmlstm.test.json"
    stored, ranks = read_record(path), read_measured(path, "ranks")
    assert stored == value
    measured = value["region_to_phrase"]["split"]
    assert np.mean(ranks["region_to_phrase.split"] <= 5) == pytest.approx(measured["recall@5"] / 100)
    assert len(ranks["region_to_phrase.split.images"]) == measured["n"]
    know(run)
    known = rank(run)
    assert known["correspondence"]["right"] > 85 > known["correspondence"]["chance"]

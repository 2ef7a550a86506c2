"""Tests of parsed scenes of the demo with regions: phrases are ranked, and labelled boxes get generated captions.

The captions come from a generator that learned from regions, and are compared with the phrases that name the boxes.
"""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from synthetic_generators import describe, link_run, train
from synthetic_multivectors import write_region_shard
from synthetic_run import MADE_BY, by_colour, by_hand, make_stage
from trainable_run import encode_parses

from pipeline.errors import InputError
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.hmlstm import HMLSTM
from pipeline.models.neural.training import seeded
from pipeline.storage.commit import read_record
from pipeline.storage.features import write_features
from pipeline.storage.json_files import publish_json, read_json
from pipeline.storage.manifest import Manifest
from pipeline.storage.pairs import split_pairs
from pipeline.storage.parameters import MODEL, read_parameters, write_parameters
from pipeline.storage.records import read_measured, write_alignments
from pipeline.storage.regions import PhraseVectors, read_names, write_phrases
from pipeline.storage.tables import CORNERS, vectors_column
from pipeline.storage.texts import read_packed_trees
from pipeline.text.trees import Trees

HAS_COCO_METRICS = find_spec("pycocoevalcap") is not None
"""Whether the library that computes BLEU is installed."""
SETTINGS = {
    "demo": {"train": 40, "dev": 5, "test": 8, "weak": 0},
    "encoders": [{"name": "eyes", "architecture": "squeezenet1_1", "weights": "untrained"}],
    "image_view": {"normalise": []},
    "tokens": {"min_count": 1},
    "evaluate": {"bootstrap": 20},
    "models": ["dvsa", "hmlstm"],
    "regions": {"encoders": ["eyes"]},
    "phrases": {"splits": ["dev"]},
    "generators": ["mrnn-regions"],
    "mrnn_regions": {"snippets": "dvsa", "dimensions": 24, "word_dim": 16, "epochs": 12, "batch_size": 8,
                     "learning_rate": 0.02, "dropout": 0, "averaging": 0},
    "describe": {"boxes": True, "top": 2, "beam": 3, "meteor": False},
}  # fmt: skip
PHRASES = "phrases/hmlstm/dev"
"""Folder in the run that has the embedded phrases and regions."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run of parsed scenes whose regions are the labelled boxes, and return its folder. The features of a region
    are a one-hot code of its label.

    Region 0 of each image is the whole image, with features of zero. The first box of each test image is not a region.
    """
    run = tmp_path_factory.mktemp("scenes")
    (run / "config.yaml").write_text(yaml.safe_dump({"data_root": str(run / "data"), **SETTINGS}))
    for stage in ("make_demo", "ingest", "parse"):
        make_stage(stage, run)
    encode_parses(run)
    manifest = Manifest(run / "manifest")
    kinds = sorted(read_names(run / "data" / "names.tsv"))
    eye = np.eye(len(kinds))
    table = manifest.boxes.to_pylist()
    boxes = []
    features = []
    for row in manifest.images.to_pylist():
        own = [box for box in table if box["image_id"] == row["image_id"]][row["split"] == "test" :]
        boxes.append([[0, 0, row["width"], row["height"]], *([box[corner] for corner in CORNERS] for box in own)])
        features.append([0 * eye[0], *(eye[kinds.index(box["label"])] for box in own)])
    write_region_shard(run, "eyes", boxes, features)
    whole = np.zeros((len(boxes), len(kinds)), np.float16)
    write_features(run / "features/eyes/shard-00000.h5", whole, np.arange(len(boxes)), by_colour(run), {})
    return run


# --- phrases


@pytest.fixture(scope="module")
def phrased(run: Path) -> Path:
    """Add an untrained model `hmlstm` to the run. Embed the phrases and regions of the dev split with the model, and
    return the folder of the run.
    """
    vocabulary, table = (read_json(run / f"text/{name}.json") for name in ("tokens", "labels"))
    vectors = np.random.default_rng(0).standard_normal((len(vocabulary["terms"]) + 1, 8), dtype=np.float32)
    learned = {"noun_phrase": table["phrases"].index("NP")}
    dim = len(read_names(run / "data" / "names.tsv"))
    with seeded(0):
        network = HMLSTM.make_network(torch.zeros(dim), torch.tensor(vectors), 16, 0.0, learned, "cosine")
    model = HMLSTM(ImageView(("eyes",), (dim,), ("l2",)), network, learned)
    details = {
        "model": "hmlstm", "registered": "hmlstm", "vocabulary": vocabulary["fingerprint"],
        "labels": table["fingerprint"], "regions": {"eyes": MADE_BY},
    }  # fmt: skip
    path = run / "models/hmlstm/model.safetensors"
    write_parameters(path, MODEL, model.tensors(), settings=model.settings(), provenance=by_hand(run), details=details)
    make_stage("embed_phrases", run, "hmlstm", "dev")
    return run


def test_stored_phrases_and_regions_equal_the_embeddings_of_the_model(phrased: Path) -> None:
    found = PhraseVectors(phrased / PHRASES)
    manifest = Manifest(phrased / "manifest")
    pairs = split_pairs(manifest, "dev")
    assert (found.model, found.split) == ("hmlstm", "dev")
    texts = manifest.sentences["text"].take(found.phrases["sentence_id"].to_numpy()).to_pylist()
    for text, phrase, head in zip(texts, *(found.phrases[name].to_pylist() for name in ("text", "head")), strict=True):
        assert phrase in text.lower() and head in phrase.split()
    assert set(found.phrases["image_id"].to_pylist()) == set(pairs.image_id.tolist())
    stored = read_parameters(phrased / "models/hmlstm/model.safetensors", MODEL)
    model = HMLSTM.from_parts(stored.settings, stored.tensors)
    trees = Trees(**read_packed_trees(phrased / "text/trees", "phrase", [0])).take(pairs.sentence_id)
    np.testing.assert_allclose(found.phrase_vectors, model.embed_phrases(trees), atol=1e-6)
    assert len(found.region_vectors) == len(found.boxes) and found.regions["number"].to_pylist().count(0) == 5


def rank(run: Path) -> dict:
    """Rank the phrases and regions of the dev split by the stored vectors of `hmlstm`, and return the measures."""
    make_stage("rank_phrases", run, "hmlstm", "dev")
    return json.loads((run / "evaluation/phrases/hmlstm.dev.json").read_text())


def make_vectors_perfect(run: Path) -> None:
    """Replace the stored vectors of phrases and regions by codes: a phrase has the code of the kinds of things that it
    names, and a region has the code of the kind that its box shows.
    """
    names = read_names(run / "data" / "names.tsv")
    manifest = Manifest(run / "manifest")
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
    details = {"model": "hmlstm", "split": "dev", "dim": len(kinds)}
    write_phrases(run / PHRASES, *tables, provenance=by_hand(run), details=details)


def test_phrases_are_ranked_and_compared_with_chance(phrased: Path, tmp_path: Path) -> None:
    run = shutil.copytree(phrased, tmp_path / "run")
    value = rank(run)
    assert value["model"] == "hmlstm" and value["split"] == "dev"
    assert 10 < value["n_named"] < value["n_phrases"] and value["n_without_right_region"] == 0
    assert 0 < value["correspondence"]["chance"] < 100
    for direction in ("phrase_to_region", "region_to_phrase"):
        for scope in ("image", "split"):
            assert value[direction][scope]["recall@1"] <= value[direction][scope]["recall@10"]
            assert {"recall@5", "median_rank", "mean_rank", "chance", "n"} <= set(value[direction][scope])
    path = run / "evaluation/phrases/hmlstm.dev.json"
    stored = read_record(path)
    ranks = read_measured(path, "ranks")
    assert stored == value
    measured = value["region_to_phrase"]["split"]
    assert np.mean(ranks["region_to_phrase.split"] <= 5) == pytest.approx(measured["recall@5"] / 100)
    assert len(ranks["region_to_phrase.split.images"]) == measured["n"]
    make_vectors_perfect(run)
    known = rank(run)
    assert known["correspondence"]["right"] > 85 > known["correspondence"]["chance"]


# --- boxes


@pytest.fixture(scope="module")
def described(run: Path) -> Path:
    """Train the generator `mrnn-regions` in the run, and return the folder of the run. The generator learns to describe
    a region by its label, as in `a dog`.
    """
    manifest = Manifest(run / "manifest")
    for split in ("train", "dev"):
        segments = [
            {"sentence_id": 0, "image_id": box["image_id"], "words": ["a", box["label"]],
             "box": [box[corner] for corner in CORNERS], "score": 1.0}
            for box in manifest.boxes.to_pylist() if manifest.splits[box["image_id"]] == split
        ]  # fmt: skip
        details = {"model": "dvsa", "split": split}
        write_alignments(run / f"alignments/dvsa/{split}.jsonl", segments, provenance=by_hand(run), details=details)
    train(run, "mrnn-regions")
    return run


def evaluate(run: Path) -> dict:
    """Evaluate the stored captions of the test boxes again, and return the measures."""
    make_stage("evaluate_descriptions", run, "mrnn-regions", "test.boxes", "--force")
    return json.loads((run / "evaluation/descriptions/mrnn-regions.test.boxes.json").read_text())


def test_captions_of_boxes_are_compared_with_the_phrases_that_name_them(described: Path, caplog) -> None:
    found = describe(described, "mrnn-regions", "test.boxes")
    manifest = Manifest(described / "manifest")
    boxes = [box for box in manifest.boxes.to_pylist() if manifest.splits[box["image_id"]] == "test"]
    images = {box["image_id"] for box in boxes}
    assert f"{len(images)} of {len(boxes)} labelled boxes" in caplog.text
    assert found["of"] == "boxes" and len(found["images"]) == len(boxes) - len(images)
    known = {(box["image_id"], *(box[corner] for corner in CORNERS)): box["label"] for box in boxes}
    assert all(known[one["image_id"], *one["box"]] == one["label"] for one in found["images"])
    right = [one["sentences"][0]["text"] == f"a {one['label']}" for one in found["images"]]
    assert np.mean(right) > 0.9  # The features encode the kind, and the snippets name its label.

    value = evaluate(described)
    names = read_names(described / "data" / "names.tsv")
    said = {}
    for sentence in manifest.sentences.to_pylist():
        said.setdefault(sentence["image_id"], set()).update(sentence["text"].lower().split())
    named = [one for one in found["images"] if said[one["image_id"]] & names[one["label"]]]
    assert value["n_boxes"] == len(named) <= len(found["images"]) and value["n_references"] > value["n_boxes"]
    assert value["of"] == "boxes" and value["perplexity"] is None
    assert value["bleu_1"] > 40 if HAS_COCO_METRICS else value["bleu_1"] is None
    for one in found["images"]:
        one["sentences"][0]["text"] = "zebra crossing"
    publish_json(described / "descriptions/mrnn-regions.test.boxes/descriptions.json", found)
    found = evaluate(described)["bleu_1"]
    assert found < 1e-3 if HAS_COCO_METRICS else found is None


def test_captions_of_boxes_are_compared_with_written_texts(described: Path, tmp_path: Path) -> None:
    """A file has two texts for one box and one text for another box. Only these two boxes get captions, which are
    compared with the texts of the file.
    """
    manifest = Manifest(described / "manifest")
    boxes = [box for box in reversed(manifest.boxes.to_pylist()) if manifest.splits[box["image_id"]] == "test"]
    first = boxes[0]
    second = next(box for box in boxes if box["label"] != first["label"] and box["image_id"] != first["image_id"])
    lines = ["file\tx1\ty1\tx2\ty2\tlabel"]
    for box, text in ((first, f"a {first['label']}"), (first, "Some Thing!"), (second, f"a {second['label']}")):
        corners = "\t".join(str(box[corner]) for corner in CORNERS)
        lines.append(f"{manifest.images['path'][box['image_id']].as_py()}\t{corners}\t{text}")
    elsewhere = link_run(described, tmp_path / "run", "config.yaml")
    settings = yaml.safe_load((described / "config.yaml").read_text())
    settings["describe"]["region_texts"] = str(tmp_path / "written.tsv")
    (elsewhere / "config.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "written.tsv").write_text("\n".join(lines))
    found = describe(elsewhere, "mrnn-regions", "test.boxes")
    assert {one["label"] for one in found["images"]} == {f"a {first['label']}", f"a {second['label']}"}
    assert all(one["sentences"][0]["text"] == one["label"] for one in found["images"])
    value = evaluate(elsewhere)
    assert (value["n_boxes"], value["n_references"]) == (2, 3)
    assert value["bleu_1"] == pytest.approx(100) if HAS_COCO_METRICS else value["bleu_1"] is None
    (tmp_path / "written.tsv").write_text(lines[0])
    with pytest.raises(InputError, match=r"written\.tsv has no text for any box of this run"):
        describe(elsewhere, "mrnn-regions", "test.boxes")

"""A query in words to a model that reads trees: parsed as its sentences were, or refused with what to do."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from made_up import (
    MADE_BY,
    THINGS,
    build_bundle,
    by_colour,
    by_hand,
    features_of,
    make_run,
    make_stage,
    run_command,
    write_config,
)
from made_up_training import encode_parses

from pipeline.config.registry import model_spec
from pipeline.errors import UsageError
from pipeline.index.search import Searcher
from pipeline.models.linear.views import ImageView
from pipeline.storage.bundle import Bundle
from pipeline.storage.embeddings import Embeddings, PhraseVectors
from pipeline.storage.json_files import read_json
from pipeline.storage.manifest import Manifest
from pipeline.storage.parameters import MODEL, write_parameters
from pipeline.storage.shards import FEATURES, write_shard

SHARDS = 3


@pytest.mark.parametrize("view", ["dependency-trees", "phrase-trees"])
def test_a_query_in_words_is_refused_and_a_photograph_is_not(
    view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = build_bundle(make_run(tmp_path / "run"))
    model = SimpleNamespace(
        sentence_view=view,
        encoders=("colour",),
        embed_images=lambda features: np.asarray(features["colour"], np.float32),
    )
    monkeypatch.setattr(Searcher, "model", model)
    said = f"ncca reads {view.replace('-', ' ')}, and a query in words is not parsed: search with a photograph"
    with pytest.raises(UsageError, match=said):
        run_command("search", "--index", bundle, "a dog")
    with pytest.raises(UsageError, match="or the index of a model that reads plain words"):
        Searcher(Bundle(bundle)).batch(["unicorn"], 3)
    assert "horse" in Searcher(Bundle(bundle)).sentences(features_of("horse"), 1)[0].row["text"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made-up run with its sentences parsed by a spaCy pipeline that `train-parser` has made of the demo's."""
    pytest.importorskip("spacy", reason="spaCy is not installed: pip install 'jointspace[parse]'")
    from pipeline.demo import DrawingSettings, collection_texts, scene_record

    run = make_run(tmp_path_factory.mktemp("run"))
    settings = DrawingSettings(train=20, dev=0, test=0, weak=0, seed=3)
    texts = collection_texts([scene_record(settings, index) for index in range(settings.images)])
    (run / "bank.conllu").write_text(texts["trees.conllu"])
    parsing = {"engine": "spacy", "workers": 0, "training": {"epochs": 2}}
    parsing["treebank"] = dict.fromkeys(("train", "dev", "test"), "bank.conllu")
    rows = {"models": ["dtrnn", "hmlstm"], "regions": {"encoders": ["colour"]}}
    write_config(run, {"parse": parsing, "tokens": {"min_count": 1}, "weights_root": str(run), **rows})
    make_stage("train_parser", run)
    make_stage("parse", run)
    encode_parses(run)
    write_features(run)
    write_regions(run)
    return run


def write_features(run: Path) -> None:
    manifest = Manifest(run / "manifest")
    for shard in range(SHARDS):
        rows = manifest.shard(shard)
        ids = np.arange(rows.first_image, rows.last_image)
        arrays = {"features": np.eye(8, dtype=np.float32)[ids % 8], "image_id": ids}
        details = {"encoder": {"name": "colour"}}
        path = run / "features" / "colour" / f"shard-{shard:05d}.h5"
        write_shard(path, FEATURES, arrays, rows=len(ids), provenance=by_colour(run), details=details)


def write_regions(run: Path) -> None:
    """Of each image the whole, and two windows that look like it and like the next thing."""
    manifest = Manifest(run / "manifest")
    for shard in range(SHARDS):
        rows = manifest.shard(shard)
        ids = np.arange(rows.first_image, rows.last_image)
        looks = np.stack([ids % 8, ids % 8, (ids + 1) % 8], axis=1).ravel()
        boxes = np.tile(np.array([[0, 0, 8, 8], [0, 0, 4, 8], [4, 0, 8, 8]], np.float32), (len(ids), 1))
        arrays = {
            "features": np.eye(8, dtype=np.float32)[looks], "boxes": boxes, "scores": np.ones(len(boxes), np.float32),
            "offsets": np.arange(0, len(boxes) + 1, 3), "image_id": ids,
        }  # fmt: skip
        details = {"dim": 8}
        path = run / "regions" / "colour" / f"shard-{shard:05d}.h5"
        write_shard(path, "regions", arrays, rows=len(ids), provenance=by_colour(run), details=details)


def build(run: Path, registered: str, folder: Path) -> Path:
    """The bundle of an untrained model of trees, whose embeddings are in the run."""
    vocabulary, table = read_json(run / "text/tokens.json"), read_json(run / "text/labels.json")
    rng = np.random.default_rng(0)
    words = rng.standard_normal((len(vocabulary["terms"]) + 1, 8), dtype=np.float32)
    learned = {
        "hmlstm": {"noun_phrase": table["phrases"].index("NP")},
        "dtrnn": {"left": 4, "right": 4, "activation": "tanh"},
    }[registered]
    view, mean = ImageView(("colour",), (8,), ()), np.full(8, 0.1, np.float32)
    model = model_spec(registered).load().build(view, mean, words, 8, 0.0, 0, learned, score="cosine")
    write_parameters(
        run / "models" / registered / "model.safetensors", MODEL, model.tensors(), settings=model.settings(),
        provenance=by_hand(run), details={
            "model": registered, "registered": registered, "vocabulary": vocabulary["fingerprint"],
            "labels": table["fingerprint"], "encoders": {"colour": MADE_BY},
        },
    )  # fmt: skip
    make_stage("embed", run, registered)
    if registered == "hmlstm":
        make_stage("embed_phrases", run, registered, "test")
    folder.mkdir(exist_ok=True)
    return build_bundle(run, model=registered).rename(folder / "bundle")


@pytest.mark.parametrize("registered", ["hmlstm", "dtrnn"])
def test_a_query_is_embedded_as_the_same_sentence_was(registered: str, run: Path, tmp_path: Path) -> None:
    bundle, manifest = build(run, registered, tmp_path), Manifest(run / "manifest")
    sentence_id = np.arange(48)
    stored = Embeddings(manifest, run / "embeddings" / registered).read("sentences", sentence_id)
    searcher = Searcher(Bundle(bundle))
    for number, text in enumerate(manifest.sentences["text"].to_pylist()):
        np.testing.assert_allclose(searcher.embed_sentence(text)[0], stored[number], atol=1e-5)
    assert len(np.unique(stored.round(4), axis=0)) >= 2 * len(THINGS)
    long = "a dog and a cat near a house with a big tree"  # more than max_words
    assert np.isfinite(searcher.embed_sentence(long)).all()


def test_regions_are_searched_for_in_words(run: Path, tmp_path: Path) -> None:
    """Against a loop over the regions that `embed-phrases` has embedded; then without the first image found."""
    bundle = build(run, "hmlstm", tmp_path)
    searcher, stored = Searcher(Bundle(bundle)), PhraseVectors(run / "phrases/hmlstm/test")
    query = searcher.model.embed_snippets(searcher._encode("a dog"))[0]
    best: dict[int, tuple[float, list[float]]] = {}
    for region, box, vector in zip(
        stored.regions.to_pylist(), stored.boxes.tolist(), stored.region_vectors, strict=True
    ):
        score = float(vector @ query)
        if region["number"] and score > best.get(region["image_id"], (-np.inf, []))[0]:
            best[region["image_id"]] = score, box
    expected = sorted(best.items(), key=lambda item: -item[1][0])
    found = json.loads(run_command("search", "--index", bundle, "a dog", "--regions", "--json", "--top", 4))
    assert [hit["score"] for hit in found] == pytest.approx([score for _, (score, _) in expected[:4]], abs=1e-5)
    assert all(hit["box"] == best[hit["image_id"]][1] for hit in found) and len({hit["image_id"] for hit in found}) == 4
    assert "  4 0 8 8" in run_command("search", "--index", bundle, "a dog", "--regions", "--top", len(expected))

    gone = found[0]["image_id"]
    run_command("remove", bundle, gone, "--output", tmp_path / "less")
    left = Searcher(Bundle(tmp_path / "less")).regions("a dog", 4)
    assert [hit.row["image_id"] for hit in left][:3] == [hit["image_id"] for hit in found[1:]]
    assert len(Bundle(tmp_path / "less").image_regions().rows) == len(Bundle(bundle).image_regions().rows) - 2

"""A query in words to a model that reads trees: parsed as its sentences were, or refused with what to do."""

from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import (
    MADE_BY,
    THINGS,
    build_bundle,
    by_colour,
    by_hand,
    make_run,
    make_stage,
    write_config,
)
from made_up_training import encode_parses

from pipeline.config.registry import model_spec
from pipeline.errors import UsageError
from pipeline.index.search import Searcher
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.training import seeded
from pipeline.storage.bundles import open_bundle
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.json_files import read_json
from pipeline.storage.manifest import Manifest
from pipeline.storage.parameters import MODEL, write_parameters
from pipeline.storage.shards import FEATURES, write_shard


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made-up run with its sentences parsed by a spaCy pipeline that `train-parser` has made of the demo's, and an
    untrained model of trees."""
    pytest.importorskip("spacy", reason="spaCy is not installed: pip install 'jointspace[parse]'")
    from pipeline.demo import DrawingSettings, collection_texts, scene_record

    run = make_run(tmp_path_factory.mktemp("run"))
    settings = DrawingSettings(train=20, dev=0, test=0, weak=0, seed=3)
    texts = collection_texts([scene_record(settings, index) for index in range(settings.images)])
    (run / "bank.conllu").write_text(texts["trees.conllu"])
    parsing = {"engine": "spacy", "workers": 0, "training": {"epochs": 2}}
    parsing["treebank"] = dict.fromkeys(("train", "dev", "test"), "bank.conllu")
    write_config(run, {"parse": parsing, "tokens": {"min_count": 1}, "weights_root": str(run), "models": ["dtrnn"]})
    make_stage("train_parser", run)
    make_stage("parse", run)
    encode_parses(run)
    for number in range(Manifest(run / "manifest").n_shards):
        rows = Manifest(run / "manifest").shard(number)
        ids = np.arange(rows.first_image, rows.last_image)
        arrays = {"features": np.eye(8, dtype=np.float32)[ids % 8], "image_id": ids}
        details = {"encoder": {"name": "colour"}}
        path = run / f"features/colour/shard-{number:05d}.h5"
        write_shard(path, FEATURES, arrays, rows=len(ids), provenance=by_colour(run), details=details)
    vocabulary, table = read_json(run / "text/tokens.json"), read_json(run / "text/labels.json")
    words = np.random.default_rng(0).standard_normal((len(vocabulary["terms"]) + 1, 8), dtype=np.float32)
    view, mean = ImageView(("colour",), (8,), ()), np.full(8, 0.1, np.float32)
    learned = {"left": 4, "right": 4, "activation": "tanh"}
    registered = model_spec("dtrnn").load()
    with seeded(0):
        network = registered.make_network(torch.tensor(mean), torch.tensor(words), 8, 0.0, learned, "cosine")
    model = registered(view, network, learned)
    write_parameters(
        run / "models/dtrnn/model.safetensors", MODEL, model.tensors(), settings=model.settings(),
        provenance=by_hand(run), details={
            "model": "dtrnn", "registered": "dtrnn", "vocabulary": vocabulary["fingerprint"],
            "labels": table["fingerprint"], "encoders": {"colour": MADE_BY},
        },
    )  # fmt: skip
    make_stage("embed", run, "dtrnn")
    return run


def test_queries_are_embedded_as_the_same_sentences_were(run: Path, tmp_path: Path) -> None:
    bundle, manifest = build_bundle(run, model="dtrnn"), Manifest(run / "manifest")
    stored = Embeddings(manifest, run / "embeddings/dtrnn").read("sentences", np.arange(48))
    texts = manifest.sentences["text"].to_pylist()
    assert len(np.unique(stored.round(4), axis=0)) >= 2 * len(THINGS)
    searcher = Searcher(open_bundle(bundle, run=run))
    np.testing.assert_allclose(searcher.embed_sentences(texts), stored, atol=1e-5)


def test_no_parser_is_loaded_that_nobody_has_named(run: Path) -> None:
    """Also not where the bundle lies in a folder that looks like its run, which a stranger may have sent."""
    bundle = build_bundle(run, model="dtrnn").rename(run / "index/dtrnn")
    with pytest.raises(UsageError, match="dtrnn reads dependency trees.*name the run that parsed"):
        Searcher(open_bundle(bundle)).embed_sentence("a dog")

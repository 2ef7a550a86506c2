"""A text query to a model that reads trees is parsed like its captions, or refused with a remedy."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from synthetic_run import THINGS, build_bundle, by_colour, make_run, make_stage, write_config
from trainable_run import CONFIG, encode_parses, train

from pipeline.errors import UsageError
from pipeline.index.search import Searcher
from pipeline.storage import parsers
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.features import write_features
from pipeline.storage.manifest import Manifest
from pipeline.storage.shards import shard_path
from pipeline.storage.stored_index import open_index


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run with the model `dtrnn`, which reads trees. The stage `train_parser` trains a spaCy pipeline on trees
    of the demo, and this pipeline parses the captions of the run."""
    pytest.importorskip("spacy", reason="spaCy is not installed: pip install 'jointspace[parse]'")
    from pipeline.demo import DrawingSettings, collection_texts, scene_record

    run = make_run(tmp_path_factory.mktemp("run"), held_out="dev")
    drawing = DrawingSettings(train=20, dev=0, test=0, weak=0, seed=3)
    texts = collection_texts([scene_record(drawing, index) for index in range(drawing.images)])
    (run / "bank.conllu").write_text(texts["trees.conllu"])
    parsing = {"engine": "spacy", "workers": 0, "training": {"epochs": 2}}
    parsing["treebank"] = dict.fromkeys(("train", "dev", "test"), "bank.conllu")
    settings = {"parse": parsing, "weights_root": str(run), "train_defaults": {"epochs": 1, "patience": 1}}
    write_config(run, CONFIG, settings)
    make_stage("train_parser", run)
    make_stage("parse", run)
    encode_parses(run)
    manifest = Manifest(run / "manifest")
    for number in range(manifest.n_shards):
        rows = manifest.shard(number)
        ids = np.arange(rows.first_image, rows.last_image)
        features = np.eye(8, dtype=np.float32)[ids % 8]
        write_features(shard_path(run / "features/colour", number), features, ids, by_colour(run), {})
    train(run, "dtrnn", settings)
    make_stage("embed", run, "dtrnn")
    return run


def test_queries_have_the_vectors_of_equal_captions(run: Path, tmp_path: Path) -> None:
    bundle = build_bundle(run, model="dtrnn")
    manifest = Manifest(run / "manifest")
    stored = Embeddings(manifest, run / "embeddings/dtrnn").read("sentences", np.arange(48))
    texts = manifest.sentences["text"].to_pylist()
    assert len(np.unique(stored.round(4), axis=0)) >= 2 * len(THINGS)
    searcher = Searcher(open_index(bundle, run=run))
    np.testing.assert_allclose(searcher.embed_sentences(texts), stored, atol=1e-5)


def test_parser_is_only_loaded_from_a_run_that_the_user_has_named(run: Path) -> None:
    """The index is in the folder of its run, but the user has not named this run. The parser is therefore not loaded
    from it, because the folder may come from an untrusted source."""
    bundle = build_bundle(run, model="dtrnn").rename(run / "index/dtrnn")
    with pytest.raises(UsageError, match="dtrnn reads dependency trees.*Name the run that parsed"):
        Searcher(open_index(bundle)).embed_sentence("a dog")


def test_command_for_a_changed_parser_can_be_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run := tmp_path / "my run").mkdir()
    (run / "config.yaml").write_text("weights_root: weights")
    parsed = {"engine": {"engine": "spacy", "pipeline": None}, "parser": "the old digest"}
    monkeypatch.setattr(parsers, "open_commit", lambda *_: SimpleNamespace(details=parsed))
    monkeypatch.setattr(parsers, "find_parser", lambda *_: ("parser", "the new digest"))
    with pytest.raises(UsageError) as error:
        parsers.parser_of(run)
    assert shlex.split(str(error.value).split("`")[1]) == ["jointspace", "stage", "parse", "--run", str(run), "--force"]

"""A whole run with tf-idf and word vectors side by side, from nothing to a search."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from workflow import TINY, planned, snakemake

from pipeline.index.search import Searcher
from pipeline.storage.bundle import Bundle
from pipeline.storage.verify import examine

pytestmark = pytest.mark.slow
WORDS = ("dog", "cat", "bus", "boat", "red", "blue", "beach", "forest", "girl", "boy", "puppy")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    vectors = np.random.default_rng(0).standard_normal((len(WORDS), 5))
    vectors[-1] = vectors[0]  # no sentence of the demo has a puppy
    lines = (f"{word} {' '.join(f'{value:.4f}' for value in row)}\n" for word, row in zip(WORDS, vectors, strict=True))
    (folder / "glove.txt").write_text("".join(lines))
    words = {"name": "words", "kind": "averaged", "centre": "mean", "weight": [0.5, 1]}
    values = {
        **TINY,
        "results_root": "results",
        "data_root": "data",
        "weights_root": ".",
        "models": ["ncca", "words-alone-csls-refit", "both"],
        "text_encoders": [
            {"name": "tfidf", "kind": "tf-idf", "normalise": []},
            {**words, "averaged": {"source": "file", "file": "glove.txt"}},
        ],
        "variants": {
            "words-alone": {"model": "ncca", "text_encoders": ["words"]},
            "words-alone-csls-refit": {"model": "ncca", "text_encoders": ["words"], "csls": True, "refit": True},
        },
        "ensembles": {"both": {"members": ["ncca", "words-alone"], "weights": [0.5, 1]}},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(values))
    snakemake(folder, "all", "--configfile", "tiny.yaml")
    return folder


def test_each_model_is_found_by_the_words_of_its_text_encoders(run: Path) -> None:
    results = run / "results/tiny"
    assert not examine(results).faults and not planned(run)
    words = {"ncca": ["tfidf", "words"], "words-alone-csls-refit": ["words"], "both": ["tfidf", "words"]}
    for model, encoders in words.items():
        bundle = Bundle(results / "index" / model)
        assert sorted(bundle.card["text_encoders"]) == encoders
        searcher = Searcher(bundle)
        assert len(searcher.images("a red dog", 3)) == 3 and searcher.unknown_words("a puppy") in ([], ["a"])
    alone = Searcher(Bundle(results / "index/words-alone-csls-refit"))
    assert [hit.row["image_id"] for hit in alone.images("puppy", 5)] == [
        hit.row["image_id"] for hit in alone.images("dog", 5)
    ]
    log = json.loads((results / "models/ncca/model.json").read_text())["details"]["training_log"]
    assert {trial["text_weights"]["words"] for trial in log["trials"]} == {0.5, 1}


def test_a_changed_weight_fits_again_and_encodes_nothing_again(run: Path) -> None:
    values = yaml.safe_load((run / "tiny.yaml").read_text())
    values["text_encoders"][1]["weight"] = [2]
    (run / "heavy.yaml").write_text(yaml.safe_dump(values))
    again = planned(run, "--configfile", "heavy.yaml")
    assert "fit" in again and not again & {"prepare_text_encoder", "encode_sentences", "accumulate"}

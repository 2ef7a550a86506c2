"""Tests of the stage `train` on a small collection: searches with a trained model, starts from a model, and
restarts.
"""

import itertools
import json
import shutil
import tracemalloc
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from synthetic_run import THINGS, build_bundle, features_of, make_stage
from trainable_run import make_trainable, train

from pipeline.config.registry import model_spec
from pipeline.errors import InputError, IntegrityError
from pipeline.index.search import Searcher
from pipeline.models.linear.projection import LinearModel, WordStart
from pipeline.models.neural import word_towers
from pipeline.run.reading import texts
from pipeline.storage.commit import open_commit
from pipeline.storage.parameters import MODEL, Checkpoints, read_parameters
from pipeline.storage.stored_index import open_index

stage_train = import_module("stages.models.train")


class Killed(Exception):
    """An error that stands for a kill of the process."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run with features, tf-idf vectors and tokens for `train`, and return its folder."""
    return make_trainable(tmp_path_factory.mktemp("run"))


def test_reading_a_start_keeps_only_a_sample_of_the_training_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every eleventh of 45,056 sentences is kept. All sentences together take 18 MB of memory, but the reading takes
    less than 6 MB.
    """
    count = 11 * word_towers.SCALE_SAMPLE
    started = []
    start = object.__new__(LinearModel)
    start.text = SimpleNamespace(encoders=())
    run = SimpleNamespace(
        restored=lambda name: (start, None),
        config=SimpleNamespace(
            start=lambda model: "ncca", model=lambda name: SimpleNamespace(spec=SimpleNamespace(starts_from_terms=True))
        ),
        manifest=SimpleNamespace(texts_of=lambda split: (f"{number:0400}" for number in range(count))),
    )
    monkeypatch.setattr(texts, "read_token_vocabulary", lambda run: (SimpleNamespace(terms=("dog",)), ""))
    monkeypatch.setattr(WordStart, "encode_words", lambda *given: started.append(given))
    tracemalloc.start()
    stage_train._read_start(run, "ncca-recurrent")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert list(map(int, started[0][3])) == list(range(0, count, 11)) and peak_bytes < 6e6


def test_a_trained_model_is_embedded_indexed_and_searched(run: Path) -> None:
    folder = train(run, "lstm")
    model = read_parameters(folder / "model.safetensors", MODEL)
    vocabulary = json.loads((run / "text/tokens.json").read_text())
    assert model.details["registered"] == model.details["model"] == "lstm"
    assert model.details["vocabulary"] == vocabulary["fingerprint"] and vocabulary["min_count"] == 1
    history = model.details["training_log"]["history"]
    assert max(entry["dev"] for entry in history) == model.details["training_log"]["chosen"]["recall_sum"]
    assert not (folder / "checkpoints").exists()

    make_stage("embed", run, "lstm")
    build_bundle(run, model="lstm")
    searcher = Searcher(open_index(run / "bundle"))
    for thing in THINGS:
        assert thing in searcher.images(f"the big {thing}", 1)[0].row["path"]
        assert thing in searcher.sentences(features_of(thing), 1)[0].row["text"]
    with pytest.raises(InputError, match="none of the words of 'zebra'"):
        searcher.images("zebra", 1)


def test_ncca_refined_starts_from_a_fitted_model(run: Path, tmp_path: Path) -> None:
    parameters = read_parameters(run / "models/ncca/model.safetensors", MODEL)
    start = model_spec("ncca").load().from_parts(parameters.settings, parameters.tensors)
    folder = train(run, "ncca-refined", {"train_defaults": {"epochs": 1}})
    model = read_parameters(folder / "model.safetensors", MODEL)
    assert model.tensors["w"].shape == start.directions.w.shape
    inputs = open_commit(folder / "model.safetensors", MODEL).inputs
    assert inputs["models/ncca/model.json"] == parameters.fingerprint
    other = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(other / "models/ncca")
    with pytest.raises(IntegrityError, match=r"models/ncca/model\.json does not exist\. Run the stage that makes it"):
        train(other, "ncca-refined")


def train_killed(run: Path, model: str, config: dict, steps: int) -> None:
    """Train `model` with the settings `config`, and stop the training as a kill would do: an error is raised after
    `steps` steps, which have all written a checkpoint.
    """
    count = itertools.count(1)
    offer = Checkpoints.offer

    def offer_and_kill(self: Checkpoints, make: Any) -> None:
        offer(self, make)
        if next(count) == steps:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Checkpoints, "offer", offer_and_kill)
        train(run, model, config)


def train_counted(run: Path, model: str, config: dict) -> tuple[bytes, int]:
    """Train `model` with the settings `config`, or continue its training from a checkpoint. Return the bytes of the
    file of the model, and the number of steps in this call.
    """
    steps = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "offer", lambda self, make: steps.append(1))
        return (train(run, model, config) / "model.safetensors").read_bytes(), len(steps)


def test_a_killed_training_continues_to_the_same_bytes(run: Path) -> None:
    short = {"train_defaults": {"epochs": 3}}
    folder = train(run, "gru", short)
    whole = (folder / "model.safetensors").read_bytes()
    shutil.rmtree(folder)
    train_killed(run, "gru", short, 8)
    assert len(list((folder / "checkpoints").glob("*.safetensors"))) == 1
    assert not (folder / "model.json").exists()
    assert train_counted(run, "gru", short) == (whole, 3 * 4 - 8)


RATES = {
    "train_defaults": {"epochs": 3, "learning_rate": [1.0e-6, 0.02]},
    "variants": {"words": {"model": "bow", "seeds": [4, 5]}, "again": {"model": "bow", "seed": 4, "refit": True}},
}


def log_of(folder: Path) -> dict:
    return read_parameters(folder / "model.safetensors", MODEL).details["training_log"]


def test_dev_chooses_the_learning_rate_of_the_first_seed_and_the_other_seeds_have_it(run: Path) -> None:
    alone = {}
    for rate in RATES["train_defaults"]["learning_rate"]:
        one = {"model": "bow", "seed": 4, "learning_rate": rate}
        folder = train(run, "one", {**RATES, "variants": {"one": one}})
        alone[rate] = read_parameters(folder / "model.safetensors", MODEL)
    best = max(alone, key=lambda rate: alone[rate].details["training_log"]["chosen"]["recall_sum"])
    folder = train(run, "words-seed4", RATES)
    log = log_of(folder)
    assert best == 0.02 and not (folder / "checkpoints").exists()
    scores = {rate: model.details["training_log"]["chosen"]["recall_sum"] for rate, model in alone.items()}
    assert log["rates"] == {f"{rate:g}": score for rate, score in scores.items()}
    assert log["chosen"] == {"recall_sum": scores[best], "learning_rate": best}
    chosen = read_parameters(folder / "model.safetensors", MODEL)
    for name, tensor in alone[best].tensors.items():
        np.testing.assert_array_equal(chosen.tensors[name], tensor)

    folder = train(run, "words-seed5", RATES)
    log = log_of(folder)
    assert log["chosen"]["learning_rate"] == best and "rates" not in log
    assert "models/words-seed4/model.json" in open_commit(folder / "model.safetensors", MODEL).inputs
    train(run, "again", RATES)
    assert log_of(run / "models/again")["chosen"] == log_of(run / "models/words-seed4")["chosen"]


def test_a_killed_search_for_a_rate_continues_to_the_same_bytes(run: Path) -> None:
    """The process is killed in the training with the second learning rate. The continued search repeats no step of the
    first rate, and ends with the bytes of a search that was not killed.
    """
    folder = train(run, "words-seed4", RATES)
    whole = (folder / "model.safetensors").read_bytes()
    shutil.rmtree(folder)
    train_killed(run, "words-seed4", RATES, 16)
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"1e-06", "0.02"}
    assert train_counted(run, "words-seed4", RATES) == (whole, 2 * 3 * 4 - 16)


def test_word_vectors_come_from_a_file(run: Path) -> None:
    words = json.loads((run / "text/tokens.json").read_text())["terms"]
    (run / "v.txt").write_text("".join(f"{word} {i} 1 0\n" for i, word in enumerate(words)))
    config = {"weights_root": str(run), "word_vectors": {"source": "file", "file": "v.txt", "train": False}}
    config["train_defaults"] = {"epochs": 1}
    folder = train(run, "bow", config)
    table = read_parameters(folder / "model.safetensors", MODEL).tensors["sentences.words"]
    np.testing.assert_array_equal(table[:-1, 0], np.arange(len(words)))
    (run / "v.txt").write_text("dog 1 2\ncat 1 2 3\n")
    with pytest.raises(InputError, match=r"v.txt, line 2 has a vector of 3 numbers, but 2"):
        train(run, "bow", config)
    config["word_vectors"]["file"] = "nowhere.txt"
    with pytest.raises(InputError, match="cannot read .*nowhere.txt"):
        train(run, "bow", config)

"""Refits: models that learn from train and dev by what another model chose on dev."""

from pathlib import Path

import numpy as np
import pytest
from made_up import THINGS, make_stage
from made_up_training import add_moments, fit, make_trainable, read_model

from pipeline.errors import UsageError
from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.cca import CCASolver
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest
from pipeline.storage.pairs import split_pairs
from pipeline.storage.shards import FEATURES, Shard
from pipeline.storage.texts import VectorShard

GRID = {"dimensions": [3, 5], "image_ridge": [0.01, 1], "text_ridge": [0.01, 1], "eigenvalue_power": [0, 1]}
ROWS = {
    "fit": GRID, "models": ["both-refit", "stern"],
    "ensembles": {"both": {"members": ["ncca", "bow"]}, "both-refit": {"members": ["ncca", "bow"], "refit": True}},
    "variants": {"stern": {"model": "ncca", "fit": {"image_ridge": [7]}}},
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models `ncca` and `bow`, and both of them refitted."""
    run = make_trainable(tmp_path_factory.mktemp("run"))
    add_moments(run, ROWS)
    fit(run, "ncca")
    fit(run, "ncca-refit")
    make_stage("train", run, "bow")
    make_stage("train", run, "bow-refit")
    for model in ("ncca", "ncca-refit", "bow", "bow-refit"):
        make_stage("embed", run, model)
    return run


def test_a_linear_refit_is_the_solution_of_all_pairs_at_what_was_chosen(run: Path) -> None:
    chosen, refit = (read_model(run, model) for model in ("ncca", "ncca-refit"))
    log = refit.details["training_log"]
    assert log["chosen"] == chosen.details["training_log"]["chosen"] and log["trials"] == []
    assert log["dev_correlations"] is None and refit.details["refits"] == "ncca"

    manifest, found = Manifest(run / "manifest"), log["chosen"]
    shards = [VectorShard(path) for path in sorted((run / "text/tfidf").glob("*.h5"))]
    accumulator = MomentsAccumulator(len(THINGS), shards[0].matrix.shape[1], threads=1)
    for number, shard in enumerate(shards):
        features = Shard(run / f"features/colour/shard-{number:05d}.h5", FEATURES)["features"][:].astype(np.float32)
        accumulator.add(features, shard.matrix, shard.image_id - manifest.shard(number).first_image)
    moments = accumulator.result()
    assert moments.n == manifest.sentences.num_rows
    expected = CCASolver(moments).solve(found["image_ridge"], found["text_ridge"], found["dimensions"])
    np.testing.assert_allclose(refit.tensors["mean_y"], moments.mean_y, atol=1e-6)
    np.testing.assert_allclose(refit.tensors["values"], expected.values, atol=1e-4)
    assert not np.allclose(refit.tensors["values"], chosen.tensors["values"], atol=1e-4)


def test_a_variant_has_a_grid_of_its_own(run: Path) -> None:
    fit(run, "stern")
    log = read_model(run, "stern").details["training_log"]
    assert {trial["image_ridge"] for trial in log["trials"]} == {7}
    assert {trial["dimensions"] for trial in log["trials"]} == set(GRID["dimensions"])


def test_a_trained_refit_takes_all_pairs_for_as_many_epochs_and_is_judged_by_nothing(run: Path) -> None:
    chosen, refit = (read_model(run, model).details["training_log"] for model in ("bow", "bow-refit"))
    manifest = Manifest(run / "manifest")
    assert chosen["pairs"] == len(split_pairs(manifest, "train").sentence_id) < refit["pairs"]
    assert refit["pairs"] == manifest.sentences.num_rows
    assert len(refit["history"]) == refit["best_epoch"] + 1 == chosen["best_epoch"] + 1
    assert all("dev" not in entry for entry in refit["history"]) and refit["chosen"] == chosen["chosen"]


def test_a_refitted_ensemble_has_the_weights_of_the_one_that_chose_them(run: Path) -> None:
    for model in ("both", "both-refit"):
        make_stage("combine", run, model)
    chosen, refit = (read_model(run, model).details for model in ("both", "both-refit"))
    assert refit["weights"] == {f"{name}-refit": weight for name, weight in chosen["weights"].items()}
    make_stage("join_embeddings", run, "both-refit")
    joined = Embeddings(Manifest(run / "manifest"), run / "embeddings/both-refit")
    assert (joined.name, joined.refits) == ("both-refit", "both")


def test_dev_says_nothing_of_what_learned_from_it(run: Path) -> None:
    make_stage("evaluate", run, "ncca", "dev", "all-sentences")
    with pytest.raises(UsageError, match="ncca-refit .*the dev split .*ncca, or test"):
        make_stage("evaluate", run, "ncca-refit", "dev", "all-sentences")

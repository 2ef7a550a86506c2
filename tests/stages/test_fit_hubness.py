"""Tests of refits and of hubness corrections of models.

A refit learns from the splits train and dev, with the hyperparameters that another model chose on dev. A hubness
correction is tested alone, as a refit, and in ensembles.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import faiss
import numpy as np
import pytest
from synthetic_run import THINGS, build_bundle, make_stage, open_run, run_command
from trainable_run import add_moments, fit, make_trainable, read_model

import jointspace
from pipeline.config.models import HubnessSettings
from pipeline.errors import UsageError
from pipeline.index.search import Searcher
from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.cca import CCASolver
from pipeline.models.linear.corrected import HubnessCorrection
from pipeline.models.linear.hubness import Bank, choose_correction
from pipeline.run.runner import run_stage
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest
from pipeline.storage.pairs import split_pairs
from pipeline.storage.parameters import Parameters
from pipeline.storage.shards import FEATURES, Shard
from pipeline.storage.stored_index import open_index
from pipeline.storage.texts import VectorShard
from stages.models.fit_hubness import fit_hubness

GRID = {"dimensions": [3, 5], "image_ridge": [0.01, 1], "text_ridge": [0.01, 1], "eigenvalue_power": [0, 1]}
SETTINGS = {
    "fit": GRID,
    "hubness": {"neighbours": [2, 4], "weight": [0.25, 0.5], "sharpness": [1, 3], "bank": 20},
    "variants": {
        "stern": {"model": "ncca", "fit": {"image_ridge": [7]}},
        "ncca-csls": {"model": "ncca", "csls": True},
        "ncca-csls-refit": {"model": "ncca", "csls": True, "refit": True},
        "ncca-auto": {"model": "ncca", "hubness": "auto"},
        "ncca-sinkhorn-refit": {"model": "ncca", "hubness": "sinkhorn", "refit": True},
    },
    "ensembles": {
        "both": {"members": ["ncca", "bow"]},
        "both-refit": {"members": ["ncca", "bow"], "refit": True},
        "corrected": {"members": ["ncca-csls", "stern"]},
    },
    "models": ["both-refit", "corrected", "ncca-csls-refit", "ncca-auto", "ncca-sinkhorn-refit"],
}


def correct(run: Path, row: str) -> Parameters:
    """Fit the hubness correction of the corrected model `row`, such as `ncca-csls`, and return the stored corrected
    model.
    """
    make_stage("fit_hubness", run, row)
    return read_model(run, row)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run with five fitted models and their embeddings: `ncca` and `bow`, the refits of both, and the variant
    `stern` of `ncca`. The variant `ncca-csls`, which is corrected for hubness, is made too. Return the folder of the
    run.
    """
    run = make_trainable(tmp_path_factory.mktemp("run"))
    add_moments(run, SETTINGS)
    for model in ("ncca", "stern", "ncca-refit"):
        fit(run, model)
    for model in ("bow", "bow-refit"):
        make_stage("train", run, model)
    for model in ("ncca", "stern", "ncca-refit", "bow", "bow-refit"):
        make_stage("embed", run, model)
    correct(run, "ncca-csls")
    make_stage("embed", run, "ncca-csls")
    return run


def test_a_linear_refit_solves_all_pairs_with_the_chosen_hyperparameters(run: Path) -> None:
    chosen, refit = (read_model(run, model) for model in ("ncca", "ncca-refit"))
    log = refit.details["training_log"]
    assert log["chosen"] == chosen.details["training_log"]["chosen"] and log["trials"] == []
    assert log["dev_correlations"] is None and refit.details["refits"] == "ncca"

    manifest = Manifest(run / "manifest")
    found = log["chosen"]
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


def test_a_variant_has_its_own_grid(run: Path) -> None:
    log = read_model(run, "stern").details["training_log"]
    assert {trial["image_ridge"] for trial in log["trials"]} == {7}
    assert {trial["dimensions"] for trial in log["trials"]} == set(GRID["dimensions"])


def test_a_trained_refit_uses_all_pairs_and_as_many_epochs_and_has_no_dev_scores(run: Path) -> None:
    chosen, refit = (read_model(run, model).details["training_log"] for model in ("bow", "bow-refit"))
    manifest = Manifest(run / "manifest")
    assert chosen["pairs"] == len(split_pairs(manifest, "train").sentence_id) < refit["pairs"]
    assert refit["pairs"] == manifest.sentences.num_rows
    assert len(refit["history"]) == refit["best_epoch"] + 1 == chosen["best_epoch"] + 1
    assert all("dev" not in entry for entry in refit["history"]) and refit["chosen"] == chosen["chosen"]


def test_a_refitted_ensemble_has_the_weights_that_were_chosen_on_dev(run: Path) -> None:
    for model in ("both", "both-refit"):
        make_stage("combine", run, model)
    chosen, refit = (read_model(run, model).details for model in ("both", "both-refit"))
    assert refit["weights"] == {f"{name}-refit": weight for name, weight in chosen["weights"].items()}
    make_stage("join_embeddings", run, "both-refit")
    joined = Embeddings(Manifest(run / "manifest"), run / "embeddings/both-refit")
    assert (joined.name, joined.refits) == ("both-refit", "both")


@pytest.mark.parametrize("model", ["ncca", "ncca-csls"])
def test_linear_models_embed_without_torch_on_a_cpu(run: Path, model: str, tmp_path: Path) -> None:
    """The import of torch would take longer than the stage, which runs once for each model of a run."""
    copy = shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(copy / "embeddings" / model)
    code = (
        "import sys; from stages.cli import cli\n"
        f"cli(['stage', 'embed', {model!r}, '--run', {str(copy)!r}], standalone_mode=False)\n"
        "print([name for name in ('torch', 'torchvision', 'sklearn') if name in sys.modules])"
    )
    no_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=no_gpu)
    assert result.stdout.splitlines()[-1] == "[]"
    assert len(list((copy / "embeddings" / model).glob("shard-*.h5"))) == 5


def test_a_refit_is_not_evaluated_on_dev(run: Path) -> None:
    make_stage("evaluate", run, "ncca", "dev", "all-sentences")
    with pytest.raises(UsageError, match="ncca-refit was trained on the dev split, .*Evaluate ncca instead"):
        make_stage("evaluate", run, "ncca-refit", "dev", "all-sentences")


# --- hubness corrections


def test_the_correction_that_is_best_on_dev_is_chosen_and_embedded(run: Path) -> None:
    found = read_model(run, "ncca-csls")
    log = found.details["training_log"]
    bank = Bank(found.tensors["hubness/images"], found.tensors["hubness/sentences"])
    assert len(bank.images) == len(bank.sentences) == 20 and len(log["trials"]) == 5
    manifest = Manifest(run / "manifest")
    plain = Embeddings(manifest, run / "embeddings/ncca")
    dev = split_pairs(manifest, "dev")
    x = plain.read("images", dev.image_id)
    y = plain.read("sentences", dev.sentence_id)
    terms, again = choose_correction("csls", bank, x, y, dev.owners, HubnessSettings(**SETTINGS["hubness"]))
    correction = HubnessCorrection(bank, terms)
    assert log["chosen"] == again["chosen"]
    assert found.settings["hubness"] == {side: list(map(list, of_side)) for side, of_side in terms.items()}
    train = split_pairs(manifest, "train").image_id
    assert {tuple(row) for row in bank.images} <= {tuple(row) for row in plain.read("images", train)}

    corrected = Embeddings(manifest, run / "embeddings/ncca-csls")
    assert (corrected.name, corrected.registered, corrected.dim) == ("ncca-csls", "ncca", plain.dim + 4)
    for side, vectors, ids in (("images", x, dev.image_id), ("sentences", y, dev.sentence_id)):
        np.testing.assert_allclose(corrected.read(side, ids), correction.extend(side, vectors), atol=1e-6)


def test_the_best_method_of_each_direction_is_refitted_with_a_new_bank(run: Path) -> None:
    correct(run, "ncca-auto")
    make_stage("embed", run, "ncca-auto")
    chosen, refit = (correct(run, name) for name in ("ncca-sinkhorn", "ncca-sinkhorn-refit"))
    assert refit.settings["hubness"] == chosen.settings["hubness"]


@pytest.mark.parametrize("model", ["ncca", "bow"])
def test_a_log_of_queries_replaces_the_training_sentences_of_the_bank(run: Path, model: str, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(f"a {THINGS[0]}\n\n  the {THINGS[1]} and a {THINGS[2]}\n")
    logged = {
        "hubness": {"queries": str(tmp_path / "log.txt")},
        "variants": {"asked": {"model": model, "hubness": "nnn"}},
    }
    opened = open_run(run, logged, {"models": ["asked"]})
    run_stage(opened, fit_hubness, ("asked",))
    assert len(opened.model("asked").tensors["hubness/queries"]) == 2


def test_a_corrected_refit_keeps_the_chosen_correction(run: Path) -> None:
    chosen = read_model(run, "ncca-csls")
    refit = correct(run, "ncca-csls-refit")
    assert refit.settings["hubness"] == chosen.settings["hubness"]
    assert refit.details["refits"] == "ncca-csls" and refit.details["model"] == "ncca-csls-refit"
    make_stage("embed", run, "ncca-csls-refit")
    with pytest.raises(UsageError, match="ncca-csls-refit .*the dev split"):
        make_stage("evaluate", run, "ncca-csls-refit", "dev", "all-sentences")


def test_an_ensemble_takes_corrected_members(run: Path) -> None:
    make_stage("combine", run, "corrected")
    assert set(read_model(run, "corrected").details["weights"]) == {"ncca-csls", "stern"}


def test_a_query_is_corrected_with_the_bank_in_the_index(run: Path) -> None:
    searcher = Searcher(open_index(build_bundle(run, model="ncca-csls")))
    embeddings = Embeddings(Manifest(run / "manifest"), run / "embeddings/ncca-csls")
    for thing in THINGS:
        hits = searcher.images(f"a {thing}", 3)
        assert all(thing in hit.row["path"] for hit in hits[:2])
    texts = embeddings.manifest.sentences["text"].to_pylist()
    asked = texts.index(f"a {THINGS[0]}")
    images = embeddings.read("images", np.arange(len(embeddings.manifest.splits)))
    products = images @ embeddings.read("sentences", np.array([asked]))[0]
    hit = searcher.images(texts[asked], 1)[0]
    assert hit.score == pytest.approx(products.max(), abs=1e-5)


def test_exported_vectors_give_the_corrected_order_by_product_and_by_distance(run: Path, tmp_path: Path) -> None:
    index = jointspace.load(build_bundle(run, model="ncca-csls", output="exported"))
    run_command("export", run / "exported", "--to", "npy", "--output", tmp_path / "vectors")
    vectors = np.load(tmp_path / "vectors/images.npy")
    query = index.embed_text(f"a {THINGS[0]}")
    corrected = [hit.score for hit in index.search(f"a {THINGS[0]}", k=len(vectors), match_text=False)]
    assert vectors.shape[1] == Embeddings(Manifest(run / "manifest"), run / "embeddings/ncca").dim + 4
    np.testing.assert_allclose(np.sort(vectors @ query)[::-1], corrected, atol=1e-5)
    distances = np.linalg.norm(vectors - query, axis=1)
    np.testing.assert_allclose(1 - np.sort(distances) ** 2 / 2, corrected, atol=1e-5)


def test_exported_codes_give_the_corrected_scores_less_a_constant(run: Path, tmp_path: Path) -> None:
    index = jointspace.load(build_bundle(run, model="ncca-csls", output="coded"))
    run_command("export", run / "coded", "--to", "faiss", "--type", "pq16", "--output", tmp_path / "codes")
    query = index.embed_text(f"a {THINGS[0]}")
    corrected = [hit.score for hit in index.search(f"a {THINGS[0]}", k=100, match_text=False)]
    scores = faiss.read_index(str(tmp_path / "codes/images.faiss")).search(query[None], len(corrected))[0][0]
    # The run has fewer photos than a code has centroids, so that the codes are exact.
    np.testing.assert_allclose(scores - scores[0], np.array(corrected) - corrected[0], atol=1e-5)

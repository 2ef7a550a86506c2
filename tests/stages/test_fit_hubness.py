"""`fit-hubness`: models whose scores are corrected for hubs, alone, refitted, and in ensembles."""

from pathlib import Path

import numpy as np
import pytest
from made_up import THINGS, build_bundle, make_stage
from made_up_training import add_moments, fit, make_trainable, read_model

from pipeline.errors import UsageError
from pipeline.index.search import Searcher
from pipeline.models.linear.hubness import Bank, choose_correction
from pipeline.storage.bundle import Bundle
from pipeline.storage.bundles import open_bundle
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest
from pipeline.storage.pairs import split_pairs
from pipeline.storage.parameters import Parameters

ROWS = {
    "fit": {"dimensions": [5], "image_ridge": [0.1], "text_ridge": [0.1], "eigenvalue_power": [1]},
    "csls": {"neighbours": [2, 4], "weight": [0.25, 0.5], "bank": 20},
    "variants": {
        "other": {"model": "ncca"},
        "ncca-csls": {"model": "ncca", "csls": True},
        "ncca-csls-refit": {"model": "ncca", "csls": True, "refit": True},
    },
    "ensembles": {"both": {"members": ["ncca-csls", "other"]}},
    "models": ["both", "ncca-csls-refit"],
}


def scale(run: Path, row: str) -> Parameters:
    make_stage("fit_hubness", run, row)
    return read_model(run, row)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_trainable(tmp_path_factory.mktemp("run"))
    add_moments(run, ROWS)
    for row in ("ncca", "other", "ncca-refit"):
        fit(run, row)
        make_stage("embed", run, row)
    scale(run, "ncca-csls")
    make_stage("embed", run, "ncca-csls")
    return run


def test_what_is_best_on_dev_is_chosen_and_embedded(run: Path) -> None:
    found = read_model(run, "ncca-csls")
    log, bank = found.details["training_log"], Bank(found.tensors["csls/images"], found.tensors["csls/sentences"])
    assert len(bank.images) == len(bank.sentences) == 20 and len(log["trials"]) == 4
    manifest = Manifest(run / "manifest")
    plain, dev = Embeddings(manifest, run / "embeddings/ncca"), split_pairs(manifest, "dev")
    x, y = plain.read("images", dev.image_id), plain.read("sentences", dev.sentence_id)
    ks, weights = ROWS["csls"]["neighbours"], ROWS["csls"]["weight"]
    near = bank.near_images(x, ks), bank.near_sentences(y, ks)
    assert log["chosen"] == choose_correction(x @ y.T, *near, dev.owners, ks, weights)[0]
    assert found.settings["csls"] == {name: log["chosen"][name] for name in ("weight", "neighbours")}
    train = split_pairs(manifest, "train").image_id
    assert {tuple(row) for row in bank.images} <= {tuple(row) for row in plain.read("images", train)}

    scaled = Embeddings(manifest, run / "embeddings/ncca-csls")
    assert (scaled.name, scaled.registered, scaled.dim) == ("ncca-csls", "ncca", plain.dim + 4)
    weight, column = log["chosen"]["weight"], ks.index(log["chosen"]["neighbours"])
    expected = x @ y.T - weight * (near[0][:, column, None] + near[1][:, column])
    products = scaled.read("images", dev.image_id) @ scaled.read("sentences", dev.sentence_id).T
    np.testing.assert_allclose(products * (2 + weight**2), expected, atol=1e-5)


def test_a_refit_takes_what_was_chosen_and_a_bank_of_both_splits(run: Path) -> None:
    chosen = read_model(run, "ncca-csls")
    refit = scale(run, "ncca-csls-refit")
    assert refit.settings["csls"] == chosen.settings["csls"]
    assert refit.details["refits"] == "ncca-csls" and refit.details["model"] == "ncca-csls-refit"
    make_stage("embed", run, "ncca-csls-refit")
    with pytest.raises(UsageError, match="ncca-csls-refit has learned from the dev split"):
        make_stage("evaluate", run, "ncca-csls-refit", "dev", "all-sentences")


def test_an_ensemble_takes_corrected_members(run: Path) -> None:
    make_stage("combine", run, "both")
    details = read_model(run, "both").details
    assert set(details["weights"]) == {"ncca-csls", "other"}


def test_a_query_is_corrected_by_the_bank_that_its_bundle_carries(run: Path) -> None:
    searcher = Searcher(Bundle(build_bundle(run, model="ncca-csls")))
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


def test_several_bundles_of_corrected_vectors_answer_as_one(run: Path) -> None:
    whole = Searcher(Bundle(build_bundle(run, model="ncca-csls", output="whole")))
    several = Searcher(open_bundle(build_bundle(run, {"index": {"bundles": 2}}, model="ncca-csls", output="several")))
    assert len(several.bundle.parts) == 2
    for thing in THINGS:
        ours, theirs = (searcher.images(f"a {thing}", 9) for searcher in (several, whole))
        assert [hit.score for hit in ours] == pytest.approx([hit.score for hit in theirs], abs=1e-5)

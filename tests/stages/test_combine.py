"""Tests of the stages `combine` and `join-embeddings` on two synthetic models, one of which is always wrong."""

from pathlib import Path

import numpy as np
import pytest
from synthetic_multivectors import add_fragments, write_tokens_of_terms
from synthetic_run import by_hand, make_run, make_stage, write_config
from trainable_run import read_model

from pipeline.metrics.multivector_scores import multivector_scores
from pipeline.models.linear.ensemble import Ensemble
from pipeline.storage.commit import open_commit
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest
from pipeline.storage.parameters import MODEL, Parameters, read_parameters, write_parameters
from pipeline.storage.shards import EMBEDDINGS, Shard, write_shard


def configure(run: Path, grid: list[float]) -> Path:
    """Write the configuration of the run, with the ensemble `both`, whose weights are chosen from `grid`. Return the
    path of the configuration.
    """
    ensembles = {"both": {"members": ["right", "wrong"], "weights": grid}}
    variants = {name: {"model": "ncca"} for name in ("right", "wrong")}
    write_config(run, {"ensembles": ensembles, "variants": variants, "models": ["both"]})
    return run / "config.yaml"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run with the models `right` and `wrong`, and return its folder. The model `wrong` confuses each thing with
    the thing before it.
    """
    run = make_run(tmp_path_factory.mktemp("run"), held_out="dev")
    for row in ("right", "wrong"):
        parameters = read_parameters(run / "models/ncca/model.safetensors", MODEL)
        tensors = dict(parameters.tensors)
        if row == "wrong":
            tensors["u"] = np.roll(tensors["u"], -1, axis=1)
        model = write_parameters(
            run / "models" / row / "model.safetensors", MODEL, tensors, settings=parameters.settings,
            provenance=by_hand(run), details={**parameters.details, "model": row},
        )  # fmt: skip
        for path in (run / "embeddings/ncca").glob("*.h5"):
            shard = Shard(path, EMBEDDINGS)
            details = open_commit(path, EMBEDDINGS).details
            arrays = {name: np.array(shard[name]) for name in ("images", "image_id", "sentences", "sentence_id")}
            arrays["sentences"] = np.roll(arrays["sentences"], -1 if row == "wrong" else 0, axis=1)
            details = {**details, "model": row, "made_of": row}
            made = {"rows": shard.rows, "provenance": by_hand(run, **{model.place: model.digest}), "details": details}
            write_shard(run / "embeddings" / row / path.name, EMBEDDINGS, arrays, **made)
    return run


def combine(run: Path, ensemble: str) -> Parameters:
    """Combine the members of an ensemble, write its embeddings, and return the stored model of the ensemble."""
    make_stage("combine", run, ensemble)
    make_stage("join_embeddings", run, ensemble)
    return read_model(run, ensemble)


def combine_both(run: Path, grid: list[float]) -> Parameters:
    """Make the ensemble `both`, whose weights are chosen from `grid`, and return its stored model."""
    configure(run, grid)
    return combine(run, "both")


def test_a_member_that_is_always_wrong_gets_no_weight(run: Path) -> None:
    details = combine_both(run, [0, 0.5, 1]).details
    assert details["weights"] == {"right": 1.0, "wrong": 0.0}
    assert details["training_log"]["recall_sum"] == 600
    assert details["registered"] == "ensemble"
    joined, right = (Embeddings(Manifest(run / "manifest"), run / "embeddings" / row) for row in ("both", "right"))
    for what, count in (("images", 24), ("sentences", 48)):
        np.testing.assert_array_equal(joined.read(what, np.arange(count)), right.read(what, np.arange(count)))


def test_joined_vectors_score_the_weighted_sum_and_equal_the_embeddings_of_the_model(run: Path) -> None:
    parameters = combine_both(run, [0.25])
    manifest = Manifest(run / "manifest")
    weights = parameters.details["weights"]
    assert sum(weights.values()) == pytest.approx(1) and min(weights.values()) > 0
    joined = Embeddings(manifest, run / "embeddings/both")
    members = {name: Embeddings(manifest, run / "embeddings" / name) for name in weights}
    images = np.arange(24)
    sentences = np.arange(48)
    expected = sum(
        weight * members[name].read("images", images) @ members[name].read("sentences", sentences).T
        for name, weight in weights.items()
    )
    vectors = joined.read("images", images)
    np.testing.assert_allclose(vectors @ joined.read("sentences", sentences).T, expected, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)

    model = Ensemble.from_parts(parameters.settings, parameters.tensors)
    features = np.eye(8, dtype=np.float32)[images % 8]
    features[images, (images + 1) % 8] = 0.01 * images
    np.testing.assert_allclose(model.embed_images({"colour": features}), vectors, atol=1e-6)
    assert (model.encoders, model.views) == (("colour",), ("vectors",))


def test_a_region_model_as_a_member_makes_a_region_ensemble(run: Path) -> None:
    rules = {"mean": {"sum": "mean-words", "global_weight": 0.0}, "words": {"sum": "words", "global_weight": 0.0}}
    for row, rule in rules.items():
        add_fragments(run, row, rule)
    members = ["right", "mean", "words"]
    variants = {"right": {"model": "ncca"}, "mean": {"model": "dvsa"}, "words": {"model": "dvsa"}}
    ensembles = {"sets": {"members": members, "weights": [0.5]}}
    value = {"models": ["sets"], "regions": {"encoders": ["colour"]}, "variants": variants, "ensembles": ensembles}
    write_config(run, value)
    write_tokens_of_terms(run)
    details = combine(run, "sets").details
    manifest = Manifest(run / "manifest")
    assert details["registered"] == "fragment-ensemble"
    images = np.arange(24)
    sentences = np.arange(48)
    right = Embeddings(manifest, run / "embeddings" / "right")
    expected = details["weights"]["right"] * right.read("images", images) @ right.read("sentences", sentences).T
    for row in rules:
        expected = expected + details["weights"][row] * read_scores(Embeddings(manifest, run / "embeddings" / row))
    joined = Embeddings(manifest, run / "embeddings/sets")
    np.testing.assert_allclose(read_scores(joined), expected, atol=1e-5)
    boxes = Embeddings(manifest, run / "embeddings" / "mean").read("images", images).boxes
    np.testing.assert_array_equal(joined.read("images", images).boxes, boxes)


def read_scores(fragments: Embeddings) -> np.ndarray:
    """Return the scores (24, 48) of all images and all sentences by the rule of the embeddings."""
    images, sentences = (fragments.read(what, np.arange(count)) for what, count in (("images", 24), ("sentences", 48)))
    return multivector_scores(images, sentences, fragments.rule).numpy()

"""The commands `combine` and `join-embeddings` on two made-up rows, one of which is always wrong."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from made_up import THINGS, make_run, run_command
from made_up_sets import add_fragments

from pipeline.errors import IntegrityError, UsageError
from pipeline.index.search import Searcher
from pipeline.metrics.fragment_scores import FragmentSets, ScoreRule, fragment_scores
from pipeline.models.linear.ensemble import Ensemble
from pipeline.storage.atomic import CHECK, publish_json, read_json, read_sidecar
from pipeline.storage.bundle import Bundle
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.fragments import Fragments
from pipeline.storage.manifest import Manifest
from pipeline.storage.parameters import MODEL, read_parameters, write_parameters
from pipeline.storage.shards import EMBEDDINGS, Shard, write_shard


def write_config(run: Path, grid: list[float]) -> Path:
    encoders = [{"name": "colour", "architecture": "squeezenet1_1"}]
    ensembles = {"both": {"members": ["right", "wrong"], "weights": grid}}
    variants = {name: {"model": "ncca"} for name in ("right", "wrong")}
    value = {"encoders": encoders, "ensembles": ensembles, "variants": variants, "models": ["both"]}
    (run / "config.yaml").write_text(yaml.safe_dump(value))
    return run / "config.yaml"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows `right` and `wrong`; the latter takes every word for the thing before."""
    run = make_run(tmp_path_factory.mktemp("run"), held_out="dev")
    for row in ("right", "wrong"):
        shutil.copytree(run / "embeddings", run / "rows" / row)
        parameters = read_parameters(run / "model" / "model.safetensors", MODEL)
        tensors = dict(parameters.tensors)
        if row == "wrong":
            tensors["u"] = np.roll(tensors["u"], -1, axis=1)
        for path in (run / "rows" / row).glob("*.h5"):
            shard, details = Shard(path, EMBEDDINGS), read_sidecar(path, EMBEDDINGS).details
            arrays = {name: np.array(shard[name]) for name in ("images", "image_id", "sentences", "sentence_id")}
            arrays["sentences"] = np.roll(arrays["sentences"], -1 if row == "wrong" else 0, axis=1)
            details = {**details, "model": row, "inputs": {**details["inputs"], "model": row}}
            write_shard(path, EMBEDDINGS, arrays, rows=shard.rows, fingerprint=f"{row} {path}", details=details)
        write_parameters(
            run / "models" / row / "model.safetensors", MODEL, tensors, settings=parameters.settings,
            fingerprint=row, details={**parameters.details, "model": row},
        )  # fmt: skip
    return run


def combine(run: Path, output: str, grid: list[float]) -> None:
    run_command(
        "combine", "both", "--manifest", run / "manifest", "--embeddings", run / "rows", "--models", run / "models",
        "--vocabulary", run / "vocabulary.json", "--config", write_config(run, grid), "--output", run / output,
    )  # fmt: skip


def join(run: Path, model: str, output: str) -> Embeddings:
    manifest = Manifest(run / "manifest")
    for number in range(manifest.n_shards):
        run_command(
            "join_embeddings", "--manifest", run / "manifest", "--shard", number, "--embeddings", run / "rows",
            "--model", run / model, "--output", run / output / f"shard-{number:05d}.h5",
        )  # fmt: skip
    return Embeddings(manifest, run / output)


def test_a_member_that_is_always_wrong_gets_no_weight(run: Path) -> None:
    combine(run, "best", [0, 0.5, 1])
    details = json.loads((run / "best" / "model.json").read_text())["details"]
    assert details["weights"] == {"right": 1.0, "wrong": 0.0}
    assert details["training_log"]["recall_sum"] == 600
    assert details["inputs"]["models/wrong"] == "wrong" and details["registered"] == "ensemble"
    joined, right = join(run, "best", "joined-best"), Embeddings(Manifest(run / "manifest"), run / "rows" / "right")
    for what, count in (("images", 24), ("sentences", 48)):
        np.testing.assert_array_equal(joined.read(what, np.arange(count)), right.read(what, np.arange(count)))


def test_vectors_side_by_side_score_the_weighted_sum_and_are_what_the_model_embeds(run: Path) -> None:
    combine(run, "mixed", [0.25])
    weights = json.loads((run / "mixed" / "model.json").read_text())["details"]["weights"]
    assert sum(weights.values()) == pytest.approx(1) and min(weights.values()) > 0
    joined, manifest = join(run, "mixed", "joined"), Manifest(run / "manifest")
    members = {name: Embeddings(manifest, run / "rows" / name) for name in weights}
    images, sentences = np.arange(24), np.arange(48)
    expected = sum(
        weight * members[name].read("images", images) @ members[name].read("sentences", sentences).T
        for name, weight in weights.items()
    )
    vectors = joined.read("images", images)
    np.testing.assert_allclose(vectors @ joined.read("sentences", sentences).T, expected, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)

    parameters = read_parameters(run / "mixed" / "model.safetensors", MODEL)
    model = Ensemble.from_parts(parameters.settings, parameters.tensors)
    features = np.eye(8, dtype=np.float32)[images % 8]
    features[images, (images + 1) % 8] = 0.01 * images
    np.testing.assert_allclose(model.embed_images({"colour": features}), vectors, atol=1e-6)
    assert (model.encoders, model.views) == (("colour",), ("tfidf",))


def test_it_is_evaluated_indexed_and_searched_like_every_row(run: Path, tmp_path: Path) -> None:
    combine(run, "served", [0.25, 1])
    join(run, "served", "joined-served")
    given = ("--manifest", run / "manifest", "--embeddings", run / "joined-served")
    run_command(
        "evaluate", *given, "--split", "dev", "--protocol", "all-sentences", "--output", tmp_path / "evaluation.json"
    )
    assert json.loads((tmp_path / "evaluation.json").read_text())["model"] == "both"
    run_command(
        "build_index", *given, "--model", run / "served", "--vocabulary", run / "served" / "vocabulary.json",
        "--encoders", run / "encoders", "--output", tmp_path / "bundle",
    )  # fmt: skip
    searcher = Searcher(Bundle(tmp_path / "bundle"))
    assert {hit.row["path"] for hit in searcher.images("a dog", 3)} <= {
        f"{thing}-{i}.png" for i in range(24) for thing in THINGS
    }
    assert searcher.images("a dog", 1)[0].row["path"].startswith("dog")


def test_a_member_of_fragments_makes_an_ensemble_of_fragments(run: Path) -> None:
    rules = {"mean": {"sum": "mean-words", "global_weight": 0.0}, "words": {"sum": "words", "global_weight": 0.0}}
    for row, rule in rules.items():
        add_fragments(run, row, rule)
    members = ["right", "mean", "words"]
    value = {"encoders": [{"name": "colour", "architecture": "squeezenet1_1"}], "models": ["sets"]}
    value["regions"] = {"encoders": ["colour"]}
    value["variants"] = {"right": {"model": "ncca"}, "mean": {"model": "dvsa"}, "words": {"model": "dvsa"}}
    value["ensembles"] = {"sets": {"members": members, "weights": [0.5]}}
    (run / "sets.yaml").write_text(yaml.safe_dump(value))
    run_command(
        "combine", "sets", "--manifest", run / "manifest", "--embeddings", run / "rows", "--models", run / "models",
        "--vocabulary", run / "vocabulary.json", "--config", run / "sets.yaml", "--output", run / "sets",
    )  # fmt: skip
    details = json.loads((run / "sets" / "model.json").read_text())["details"]
    assert details["registered"] == "fragment-ensemble"
    manifest = Manifest(run / "manifest")
    for number in range(manifest.n_shards):
        run_command(
            "join_embeddings", "--manifest", run / "manifest", "--shard", number, "--embeddings", run / "rows",
            "--model", run / "sets", "--output", run / "joined-sets" / f"shard-{number:05d}.h5",
        )  # fmt: skip
    images, sentences = np.arange(24), np.arange(48)
    right = Embeddings(manifest, run / "rows" / "right")
    expected = details["weights"]["right"] * right.read("images", images) @ right.read("sentences", sentences).T
    for row in rules:
        expected = expected + details["weights"][row] * read_scores(Fragments(manifest, run / "rows" / row))
    joined = Fragments(manifest, run / "joined-sets")
    np.testing.assert_allclose(read_scores(joined), expected, atol=1e-5)
    boxes = Fragments(manifest, run / "rows" / "mean").read_sets("images", images).boxes
    np.testing.assert_array_equal(joined.read_sets("images", images).boxes, boxes)


def read_scores(fragments: Fragments) -> np.ndarray:
    """Of all images by all sentences."""
    sets = [fragments.read_sets(what, np.arange(count)) for what, count in (("images", 24), ("sentences", 48))]
    images, sentences = (FragmentSets(one.vectors, one.offsets, one.globals) for one in sets)
    return fragment_scores(images, sentences, ScoreRule.from_dict(fragments.score)).numpy()


def test_members_of_another_run_and_unknown_rows_are_refused(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "models"
    shutil.copytree(run / "models", other)
    path = other / "wrong" / "model.safetensors"
    old = read_parameters(path, MODEL)
    write_parameters(path, MODEL, old.tensors, settings=old.settings, fingerprint="another", details=old.details)
    given = ("--manifest", run / "manifest", "--embeddings", run / "rows", "--config", write_config(run, [1]))
    vocabulary = ("--vocabulary", run / "vocabulary.json")
    with pytest.raises(IntegrityError, match="rows/wrong and of .*models/wrong differ"):
        run_command("combine", "both", *given, *vocabulary, "--models", other, "--output", tmp_path / "model")
    with pytest.raises(UsageError, match=r"three is not among the ensembles of the configuration \(both\)"):
        run_command("combine", "three", *given, *vocabulary, "--models", other, "--output", tmp_path / "model")
    words = {name: value for name, value in read_json(run / "vocabulary.json").items() if name != CHECK}
    publish_json(tmp_path / "another.json", {**words, "fingerprint": "x"})
    with pytest.raises(IntegrityError, match="the vocabulary of right is none of .*another.json"):
        run_command(
            "combine", "both", *given, "--vocabulary", tmp_path / "another.json", "--models", run / "models",
            "--output", tmp_path / "model",
        )  # fmt: skip
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("ensembles", "message"),
    [
        ({"ncca": {"members": ["cca", "sae"], "weights": [1]}}, "ensembles: ncca is the name of another model"),
        ({"x": {"members": ["cca", "nca"], "weights": [1]}}, r"ensembles\.x: unknown member nca; there are ridge"),
        ({"x": {"members": ["cca", "cca"], "weights": [1]}}, "a member is named twice"),
        ({"x": {"members": ["cca", "ncca"], "weights": [0]}}, "no weight is positive"),
    ],
)
def test_a_wrong_ensemble_is_refused_by_the_configuration(tmp_path: Path, ensembles: dict, message: str) -> None:
    from pipeline import config

    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"ensembles": ensembles}))
    with pytest.raises(UsageError, match=message):
        config.load(tmp_path / "config.yaml")

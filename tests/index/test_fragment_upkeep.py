"""Bundles of sets of fragments that grow and shrink, and what their shortlists cost retrieval."""

import json
import shutil
from pathlib import Path

import faiss
import numpy as np
import pytest
import yaml
from made_up import build_bundle, make_run, make_stage, run_command, write_config
from made_up_sets import add_fragments
from test_fragment_search import SCORE

from pipeline.errors import UsageError
from pipeline.index.upkeep import drop
from pipeline.metrics.multivector_scores import exact_scores
from pipeline.multivectors import MultiVectors, ScoreRule
from pipeline.run.layout import Layout
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest

HORSES = (3, 11, 19, 27, 35)
KINDS = ["exact", "inverted"]
NAMES = (("images", "regions"), ("sentences", "words"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of 40 images with a bundle of each kind, and the same run grown to 48."""
    folder = tmp_path_factory.mktemp("runs")
    made = {name: make_run(folder / name, images=images) for name, images in (("small", 40), ("large", 48))}
    for run in made.values():
        add_fragments(run, "dvsa", SCORE)
    for kind, limit in (("exact", 1000), ("inverted", 10)):
        config = made["small"] / f"{kind}.yaml"
        config.write_text(f"index: {{exact_limit: {limit}, shortlist: {{nearest: 30, shortlist: 12}}}}")
        build_bundle(made["small"], yaml.safe_load(config.read_text()), model="dvsa", output=kind)
    return made


def test_what_needs_one_vector_an_image_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    bundle, output = runs["small"] / "exact", ("--output", tmp_path / "out")
    with pytest.raises(UsageError, match="dvsa compares regions, and a bundle does not say how to find these"):
        run_command("apply", bundle, runs["small"] / "data", *output)
    assert not (tmp_path / "out").exists()


def test_sets_of_a_model_with_globals_grow_and_shrink() -> None:
    rng = np.random.default_rng(0)
    sets = MultiVectors(None, np.array([0, 2, 5, 6]), rng.random((3, 4)), rng.random((6, 4)))
    less = sets.without(np.array([1]))
    assert less.offsets.tolist() == [0, 2, 2, 3] and sets.places(np.array([1])).tolist() == [2, 3, 4]
    np.testing.assert_array_equal(less.boxes, sets.boxes[[0, 1, 5]])
    np.testing.assert_array_equal(less.globals, sets.globals * [[1], [0], [1]])
    fresh = MultiVectors(None, np.array([0, 1, 3]), rng.random((2, 4)), rng.random((3, 4)))
    more = MultiVectors.concatenate([less, fresh])
    assert more.offsets.tolist() == [0, 2, 2, 3, 4, 6]
    np.testing.assert_array_equal(more.globals, np.concatenate([less.globals, fresh.globals]))
    np.testing.assert_array_equal(more.boxes, np.concatenate([less.boxes, fresh.boxes]))


@pytest.mark.parametrize("factory", ["Flat", "IVF5,Flat"])
def test_fragments_are_numbered_anew_in_their_order(factory: str) -> None:
    vectors = np.random.default_rng(1).standard_normal((300, 6)).astype(np.float32)
    index = faiss.index_factory(6, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    gone = np.array([0, 7, 8, 150, 299])
    drop(index, gone)
    if factory != "Flat":
        index.make_direct_map()
    np.testing.assert_array_equal(index.reconstruct_n(0, index.ntotal), np.delete(vectors, gone, axis=0))


def test_the_cost_of_a_shortlist(runs: dict[str, Path]) -> None:
    small, told = runs["small"], {}
    write_config(small, {"models": ["dvsa"], "regions": {"encoders": ["colour"]}})
    for kind in KINDS:
        shutil.copytree(small / kind, small / "index/dvsa", dirs_exist_ok=True)
        make_stage("evaluate", small, "dvsa", "test", "all-sentences", "--through-index")
        told[kind] = json.loads(Layout(small).evaluation("dvsa", "test", "all-sentences").path.read_text())
        told[kind] = told[kind]["through_index"]
    embeddings = Embeddings(Manifest(small / "manifest"), small / "embeddings/dvsa")
    both = [embeddings.read(modality, np.arange(n)) for modality, n in (("images", 40), ("sentences", 80))]
    scores, owners, test = exact_scores(*both, ScoreRule("words", 0)), np.repeat(np.arange(40), 2), range(2, 40, 3)
    ranks = {"image_to_sentence": [], "sentence_to_image": []}
    for image in test:  # ties count against the model
        own, other = scores[image, owners == image], scores[image, owners != image]
        ranks["image_to_sentence"].append(1 + (other >= own.max() - 1e-6).sum())
        for column in np.flatnonzero(owners == image):
            others = np.delete(scores[:, column], image)
            ranks["sentence_to_image"].append(1 + (others >= scores[image, column] - 1e-6).sum())
    for direction, gallery in (("sentence_to_image", 40), ("image_to_sentence", 80)):
        exact, rough = told["exact"][direction], told["inverted"][direction]
        expected = {f"recall@{k}": 100 * np.mean(np.array(ranks[direction]) <= k) for k in (1, 5, 10)}
        expected["median_rank"] = np.median(ranks[direction])
        assert exact["by_exact_search"] == exact["through_index"] == pytest.approx(expected)
        assert exact["gallery"] == rough["gallery"] == gallery
        assert (exact["depth"], rough["depth"]) == (gallery, 12) and rough["factory"].startswith("IVF")
        recalls = [f"recall@{k}" for k in (1, 5, 10)]
        assert [rough["by_exact_search"][k] for k in recalls] == pytest.approx([expected[k] for k in recalls])

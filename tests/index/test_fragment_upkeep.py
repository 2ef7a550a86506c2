"""Bundles of sets of fragments that grow and shrink, and what their shortlists cost retrieval."""

import json
import shutil
from pathlib import Path

import faiss
import numpy as np
import pytest
import yaml
from made_up import build_bundle, make_run, make_stage, run_command, write_config
from made_up_sets import add_fragments, whole_length
from test_fragment_search import SCORE, worded

from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.index.format import from_bytes
from pipeline.index.upkeep import drop
from pipeline.metrics.multivector_scores import exact_scores
from pipeline.multivectors import MultiVectors, ScoreRule
from pipeline.run.layout import Layout
from pipeline.storage.bundle import Bundle
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest
from pipeline.storage.revision import is_removed

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


def require_right(folder: Path, run: Path) -> None:
    """The bundle is whole, and each row that is left has its own fragments, boxes and numbers."""
    bundle, embeddings = Bundle(folder), Embeddings(Manifest(run / "manifest"), run / "embeddings/dvsa")
    bundle.check()
    for modality, name in NAMES:
        table, sets = bundle.table(modality), bundle.outline(modality)
        index = from_bytes(bundle.index(name), name, bundle.card[name])
        if isinstance(index, faiss.IndexIVF):
            index.make_direct_map()
        gone = is_removed(table)
        ids = table["image_id" if modality == "images" else "sentence_id"].to_numpy()[~gone]
        stored, lengths = embeddings.read(modality, ids), np.diff(sets.offsets)
        assert (lengths[gone] == 0).all() and lengths[~gone].tolist() == np.diff(stored.offsets).tolist()
        assert index.ntotal == len(stored.vectors) == bundle.card[name]["count"]
        np.testing.assert_array_equal(index.reconstruct_n(0, index.ntotal), stored.vectors)
        if modality == "images":
            np.testing.assert_array_equal(sets.boxes, stored.boxes)


@pytest.mark.parametrize("kind", KINDS)
def test_removed_then_added(runs: dict[str, Path], tmp_path: Path, kind: str) -> None:
    small, large = runs["small"], runs["large"]
    config = ("--config", small / f"{kind}.yaml")
    images = [part for image in HORSES for part in ("--image", image)]
    run_command(
        "index_remove", "--index", small / kind, "--run", small, *images, *config, "--output", tmp_path / "less"
    )
    run_command("index_add", "--index", tmp_path / "less", "--run", large, *config, "--output", tmp_path / "more")
    require_right(small / kind, small)
    require_right(tmp_path / "less", small)
    require_right(tmp_path / "more", large)
    before, less, more = (Bundle(folder) for folder in (small / kind, tmp_path / "less", tmp_path / "more"))
    for modality, name in NAMES:
        old, new = before.table(modality), more.table(modality)
        kept = [row for row, image in enumerate(old["image_id"].to_pylist()) if image not in HORSES]
        assert new.take(kept).equals(old.take(kept)) and new.num_rows == old.num_rows * 48 // 40
        for card in (less.card[name], more.card[name]):
            assert 0 < card["recall@10"] <= 1 and 0 < card["before"]["recall@10"] <= 1
            assert card["shortlist"]["queries"] == card["before"]["shortlist"]["queries"] > 0
            assert (card["imbalance"] is None) == (kind == "exact") == (card["shortlist"]["shortlist"] is None)
    assert more.card["fingerprint"] != less.card["fingerprint"] != before.card["fingerprint"]
    for bundle, horses in ((before, 5), (less, 0), (more, 1)):  # the 48 have one horse more, image 43
        for hits in (worded(bundle.folder).images("a horse", 48), worded(bundle.folder).regions("horse", 48)):
            named = [hit for hit in hits if hit.row["path"].startswith("horse")]
            assert len(named) == horses == len({hit.row["path"] for hit in named})
            assert all(hit.row["image_id"] not in HORSES for hit in hits) or bundle is before


@pytest.mark.parametrize("kind", KINDS)
def test_no_trace_is_left_of_regions_and_words(runs: dict[str, Path], tmp_path: Path, kind: str) -> None:
    small = runs["small"]
    images = [part for image in HORSES for part in ("--image", image)]
    run_command("index_remove", "--index", small / kind, "--run", small, *images, "--output", tmp_path)
    vector = whole_length(np.array([19])).tobytes()  # all of it that is not zero
    box = np.array([0, 0, 60 + 19, 40], np.float32).tobytes()
    found = {}
    for folder in (small / kind, tmp_path):
        bundle = Bundle(folder)
        found[folder] = [
            (name, what)
            for name in bundle.card["files"]
            for what, trace in (("vector", vector), ("box", box))
            if trace in bundle.read(name)
        ]
    assert found[small / kind] == [("regions.faiss", "vector"), ("fragments.safetensors", "box")]
    assert found[tmp_path] == []
    for modality in ("images", "sentences"):
        row = Bundle(tmp_path).table(modality).filter(is_removed(Bundle(tmp_path).table(modality))).to_pylist()[0]
        assert {name for name, value in row.items() if value is not None} <= {"image_id", "sentence_id"}


def test_what_cannot_be_done_is_named(runs: dict[str, Path], tmp_path: Path) -> None:
    small, start = runs["small"], runs["small"] / "exact"
    with pytest.raises(InputError, match="image 40 is not in"):
        run_command("index_remove", "--index", start, "--run", small, "--image", 40, "--output", tmp_path / "a")
    with pytest.raises(UsageError, match="give --output another folder"):
        run_command("index_add", "--index", start, "--run", runs["large"], "--output", start)
    everything = [part for image in range(40) for part in ("--image", image)]
    with pytest.raises(InputError, match="nothing would be left"):
        run_command("index_remove", "--index", start, "--run", small, *everything, "--output", tmp_path / "a")
    other = make_run(tmp_path / "other", images=20)
    add_fragments(other, "dvsa", SCORE)
    with pytest.raises(IntegrityError, match="numbers its images otherwise"):
        run_command("index_add", "--index", start, "--run", other, "--output", tmp_path / "a")
    shutil.rmtree(other / "embeddings/dvsa")
    (other / "embeddings/ncca").rename(other / "embeddings/dvsa")
    with pytest.raises(IntegrityError, match="model"):  # the embeddings of another model, of one vector each
        run_command("index_add", "--index", start, "--run", other, "--output", tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_what_needs_one_vector_an_image_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    bundle, output = runs["small"] / "exact", ("--output", tmp_path / "out")
    with pytest.raises(UsageError, match="dvsa compares regions, and a bundle does not say how to find these"):
        run_command("apply", bundle, runs["small"] / "data", *output)
    with pytest.raises(UsageError, match="has several vectors an image; change it by its run"):
        run_command("index_add", "--index", bundle, "--from", bundle, *output)
    for arguments in ((), ("--run", runs["large"], "--from", bundle)):
        with pytest.raises(UsageError, match="give either --run, .* or --from"):
            run_command("index_add", "--index", bundle, *arguments, *output)
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

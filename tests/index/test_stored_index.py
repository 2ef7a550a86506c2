"""Several index shards of one model give the same results as one shard with all their items."""

import json
import shutil
from pathlib import Path

import faiss
import numpy as np
import pytest
from synthetic_multivectors import SCORE, add_fragments
from synthetic_run import build_bundle, features_of, make_run, make_stage, retell, run_command, write_config

import jointspace
from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.index.gallery import open_gallery
from pipeline.index.search import Hit, Searcher
from pipeline.storage.card import CARD
from pipeline.storage.index_changes import read_removed
from pipeline.storage.index_folder import indexes_of_run
from pipeline.storage.index_shard import IndexShard
from pipeline.storage.stored_index import open_index

MODELS = ["ncca", "cca", "dvsa"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, Path]]:
    """Build an index of one shard and an index of three shards for each model, and return model -> number of shards ->
    folder. The models use inner products, Euclidean distances, and several vectors per image."""
    folders = {}
    for model in MODELS:
        run = make_run(tmp_path_factory.mktemp(model) / "run", "cca" if model == "cca" else "ncca", images=40)
        if model == "dvsa":
            add_fragments(run, "dvsa", SCORE)
        folders[model] = {
            count: build_bundle(run, {"index": {"bundles": count}}, model=model, output=f"of-{count}")
            for count in (1, 3)
        }
    return folders


def sorted_results(hits: list[Hit]) -> list[tuple]:
    """Return (negative rounded score, image_id, caption or None) for each result, sorted, so that the best score comes
    first and equal scores are sorted by id."""
    rows = [(-round(hit.score, 5), hit.row["image_id"], hit.row.get("text")) for hit in hits]
    return sorted(rows)


@pytest.mark.parametrize("count", [1, 3])
def test_an_index_without_captions_says_so(built: dict[str, dict[int, Path]], count: int) -> None:
    index = open_index(built["ncca"][count])
    for shard in index.shards:
        shard.card = shard.card.model_copy(update={"sentences": None})
    with pytest.raises(IntegrityError, match="has no index of sentences"):
        open_gallery(index, "sentences")


@pytest.mark.parametrize("model", MODELS)
def test_answers_equal_those_of_one_shard(built: dict[str, dict[int, Path]], model: str) -> None:
    folders = built[model]
    whole, merged = (Searcher(open_index(folders[count])) for count in (1, 3))
    assert len(merged.index.shards) == 3
    photograph = features_of("cat")
    if model == "dvsa":
        photograph = (folders[1].parent / "data/cat-17.png").read_bytes()
    questions = {
        "images": lambda searcher: (
            searcher.nearest("images", searcher.gallery("sentences").item(34), 12)[0]
            if model == "dvsa"
            else searcher.images("a cat", 12)
        ),
        "where": lambda searcher: searcher.similar(photograph, 9, where="image_id > 8 and width < 95"),
        "sentences": lambda searcher: searcher.sentences(photograph, 12, "split == 'test'"),
    }
    if model == "ncca":
        questions["analogy"] = lambda searcher: searcher.analogy(photograph, ["cat"], ["dog"], 6, 12)
        questions["both"] = lambda searcher: searcher.similar(photograph, 6, "a bird", 0.4)
    if model == "dvsa":
        words = np.eye(8, dtype=np.float32)[[1]]
        questions["regions"] = lambda searcher: searcher._list_hits(
            "images", [searcher.gallery("images").regions(words, 10)[:2]]
        )[0]
    for name, question in questions.items():
        one = question(whole)
        several = question(merged)
        assert len(several) >= 4, name
        assert sorted_results(several) == sorted_results(one), name
    for searcher in (whole, merged):
        assert searcher.table("images")["image_id"].to_pylist() == list(range(40))


def test_results_with_equal_scores_are_in_the_order_of_the_shards(
    built: dict[str, dict[int, Path]], tmp_path: Path
) -> None:
    folder = built["ncca"][3]
    bundle = open_index(folder / "01", folder / "00", shutil.copytree(folder / "01", tmp_path / "copy"))
    hits = Searcher(bundle).images("a dog", 5)
    assert [hit.row["path"] for hit in hits] == [f"dog-{number}.png" for number in (0, 8, 16, 24, 24)]
    assert [hit.row["bundle"] for hit in hits] == [1, 1, 1, 0, 2]
    ids = bundle.table("images")["image_id"].to_numpy()
    assert len(set(ids)) == len(ids) and hits[3].row["image_id"] != hits[4].row["image_id"]


def test_command_and_api_accept_a_folder_of_shards_or_several_folders(built: dict[str, dict[int, Path]]) -> None:
    folder = built["ncca"][3]
    places = [folder / number for number in ("00", "01", "02")]
    options = [part for place in places for part in ("--index", place)]
    printed = [run_command("search", *given, "--json", "a dog") for given in (options, ["--index", folder])]
    assert printed[0] == printed[1] and [hit["bundle"] for hit in json.loads(printed[0])][:4] == [0, 0, 0, 1]
    paths = [hit["path"] for hit in json.loads(printed[0])]
    for index in (jointspace.load(folder), jointspace.load(*places)):
        assert [hit.row["path"] for hit in index.search("a dog")] == paths
        assert index.card["images"]["count"] == 40
    with pytest.raises(UsageError, match="folder"):
        jointspace.load()


def test_shards_of_two_models_or_missing_shards_are_refused(built: dict[str, dict[int, Path]], tmp_path: Path) -> None:
    folder = shutil.copytree(built["ncca"][3], tmp_path / "some")
    with pytest.raises(UsageError, match=str(tmp_path / "cca")):
        open_index(folder, other_model(built["cca"][1], tmp_path / "cca"))
    with pytest.raises(UsageError, match=f"{folder / '00'} is named twice"):
        open_index(folder, folder / "00")
    shutil.rmtree(folder / "01")
    with pytest.raises(IntegrityError, match="01 is missing"):
        open_index(folder)
    assert len(open_index(folder / "00", folder / "02").shards) == 2  # A user may name shards explicitly.
    other_model(built["ncca"][1], folder / "01")
    with pytest.raises(IntegrityError, match="contains several indexes: 00, 01, 02"):
        open_index(folder)


@pytest.mark.parametrize("inside", [".", "index/ncca", "index"])
def test_one_of_several_shards_is_not_opened_as_the_index(
    inside: str, built: dict[str, dict[int, Path]], tmp_path: Path
) -> None:
    """The folder has one shard of three, as if the other shards of the run's index were still being built."""
    shutil.copytree(built["ncca"][3] / "00", tmp_path / "run/index/ncca/00")
    with pytest.raises(IntegrityError, match=r"contains 1 of 3 index shards\. The shard 01 is missing"):
        open_index(tmp_path / "run" / inside)
    assert open_index(tmp_path / "run/index/ncca/00").card.part.to_json() == {"number": 0, "of": 3}


@pytest.mark.parametrize("model", ["ncca", "dvsa"])
def test_all_shards_have_the_lists_of_the_first_one(model: str, tmp_path: Path) -> None:
    """The centroids of the first shard are trained on the vectors of all shards, and the other shards have the same
    centroids. FAISS alone reads the files."""
    run = make_run(tmp_path / "run", images=360)
    if model == "dvsa":
        add_fragments(run, "dvsa", SCORE)
    index = {"bundles": 3, "exact_limit": 10, "recall_floor": 0.9, "candidates": ["IVF4,Flat"]}
    folder = build_bundle(run, {"index": index}, model=model, output="shared")
    name = "regions" if model == "dvsa" else "images"
    read = [faiss.read_index(str(folder / f"{number:02d}/{name}.faiss")) for number in range(3)]
    first, *others = [each.quantizer.reconstruct_n(0, each.nlist) for each in read]
    assert len(first) >= 3 and all((other == first).all() for other in others)
    for each in read:
        each.make_direct_map()
    vectors = np.concatenate([each.reconstruct_n(0, each.ntotal) for each in read])
    own = faiss.Kmeans(vectors.shape[1], len(first), spherical=True, seed=1)
    own.train(vectors)
    first_loss, own_loss = (
        -faiss.knn(vectors, centroids, 1, metric=faiss.METRIC_INNER_PRODUCT)[0].mean()
        for centroids in (first, own.centroids)
    )
    assert first_loss < own_loss + 0.05 * abs(own_loss)
    opened = open_index(folder)
    opened.check()
    card = opened.shards[2].card.index_of("images")
    assert card.recall >= 0.9 and card.count == read[2].ntotal


def other_model(bundle: Path, output: Path) -> Path:
    shutil.copytree(bundle, output)
    retell(output / CARD, "inputs", "model", value="another")
    return output


def test_shards_of_an_index_with_another_number_of_shards_are_removed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", images=40)
    before = None
    for count in (1, 3, 2, 1):
        write_config(run, {"models": ["ncca"], "index": {"bundles": count}})
        make_stage("build_index", run)
        folder = run / "index/ncca"
        names = sorted(path.name for path in folder.iterdir() if (path / CARD).exists())
        assert names == ([f"{number:02d}" for number in range(count)] if count > 1 else [])
        assert (folder / "images.faiss").exists() == (count == 1)
        bundle = open_index(folder)
        bundle.check()
        assert (bundle.card.images.count, bundle.card.fingerprint == before) == (40, False)
        before = bundle.card.fingerprint
    mine = folder / "2024"  # This copy belongs to the user.
    mine.mkdir()
    for path in filter(Path.is_file, list(folder.iterdir())):
        shutil.copy(path, mine)
    make_stage("build_index", run, "--force")
    assert (mine / CARD).exists() and (mine / "images.faiss").exists()
    with pytest.raises(InputError, match="index.bundles"):
        build_bundle(run, {"index": {"bundles": 9}})
    assert len(bundle.shards) == 1


def test_the_indexes_of_a_run_are_next_to_each_other(
    built: dict[str, dict[int, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run/index"
    for name, count in (("b", 1), ("a", 3), (".hidden", 1)):
        shutil.copytree(built["ncca"][count], folder / name)
    (folder / "link").symlink_to(built["cca"][1])
    (folder / "notes").mkdir()
    assert indexes_of_run(folder / "b") == [folder / "b"]  # This folder is not inside a run.
    (tmp_path / "run/manifest").mkdir()
    (tmp_path / "run/manifest/manifest.json").touch()
    assert indexes_of_run(folder / "b") == [folder / "b", folder / "a"]
    assert indexes_of_run(folder / "a") == [folder / "a", folder / "b"]
    assert indexes_of_run(folder / "a/01") == [folder / "a/01"]
    monkeypatch.chdir(folder / "a")
    assert indexes_of_run(Path("../b")) == [Path("../b"), Path(".")]


def test_copy_keeps_the_list_of_removed_photos(built: dict[str, dict[int, Path]], tmp_path: Path) -> None:
    less = tmp_path / "less"
    run_command("remove", built["ncca"][3], "id:1", "--copy-to", less)
    run_command("remove", less, "id:20", "--copy-to", tmp_path / "both")  # Photo 20 is in another shard.
    assert [*read_removed(IndexShard(tmp_path / "both/00"))] == ["cat-1.png", "boat-20.png"]
    assert [*read_removed(IndexShard(less / "00"))] == ["cat-1.png"]

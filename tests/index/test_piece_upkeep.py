"""Bundles in pieces that grow and shrink: only the pieces that change are written, and ids keep their meaning."""

import shutil
from pathlib import Path

import faiss
import numpy as np
import pytest
from made_up import build_bundle, make_run, run_command, write_config

from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.index.opening import open_index
from pipeline.index.search import Searcher
from pipeline.index.tuning import stages_of
from pipeline.storage.bundle import Bundle, BundleWriter
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest

INDEX = {"exact_limit": 10, "candidates": ["IVF3,Flat"], "sample": 1000, "recall_floor": 0.5, "piece": 33}
NUMBER = {"images": ("image_id", "path"), "sentences": ("sentence_id", "text")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A run of 80 images, and the same run grown to 82 and to 140."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for count in (80, 82, 140):
        found[count] = make_run(folder / str(count), images=count)
        write_config(found[count], {"index": INDEX})
    build_bundle(found[80])
    return found


def assert_holds(folder: Path, run: Path, gone: set[int], images: int) -> Bundle:
    """All lists visited, the answers are those of a brute-force search among what was not removed."""
    bundle, embeddings = Bundle(folder), Embeddings(Manifest(run / "manifest"), run / "embeddings/ncca")
    bundle.check()
    for modality, (number, told) in NUMBER.items():
        table = bundle.table(modality)
        ids, there = table[number].to_numpy(), table[told].is_valid().to_numpy()
        assert ids.tolist() == list(range(images * (1 + (modality == "sentences"))))
        np.testing.assert_array_equal(there, ~np.isin(table["image_id"].to_numpy(), list(gone)))
        index, vectors = open_index(bundle, modality), embeddings.read(modality, ids)
        stages_of(index).inverted.nprobe = 3
        assert index.ntotal == there.sum() == bundle.card[modality]["count"]
        queries = embeddings.read("images", np.arange(0, 80, 7))
        true = np.where(there, queries @ vectors.T, -np.inf)
        scores, rows = index.search(queries, 10)
        np.testing.assert_allclose(scores, -np.sort(-true, axis=1)[:, :10], atol=1e-5)
        np.testing.assert_allclose(np.take_along_axis(true, rows, axis=1), scores, atol=1e-5)
        assert set(index.search(queries, index.ntotal)[1].ravel()) == set(np.flatnonzero(there))
    return bundle


def inodes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.rglob("*-0*")}


def test_what_is_removed_is_gone_from_its_pieces_alone(runs: dict[int, Path], tmp_path: Path) -> None:
    start, less = runs[80] / "bundle", tmp_path / "less"
    run_command("index_remove", "--index", start, "--image", 3, "--image", 5, "--output", less)
    bundle = assert_holds(less, runs[80], {3, 5}, 80)
    before, after = inodes(start), inodes(less)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {f"{one}-00000.{kind}" for one in NUMBER for kind in ("faiss", "parquet")}
    assert set(bundle.table("images").slice(3, 1).to_pylist()[0].values()) == {3, None}
    hits = Searcher(bundle).images("a dog", 80)
    assert len({hit.row["image_id"] for hit in hits}) == len(hits) and not {3, 5} & {
        hit.row["image_id"] for hit in hits
    }
    again = tmp_path / "again"
    run_command("index_remove", "--index", less, "--image", 79, "--output", again)
    assert_holds(again, runs[80], {3, 5, 79}, 80)
    with pytest.raises(InputError, match="image 3 is not in"):
        run_command("index_remove", "--index", again, "--image", 3, "--image", 4, "--output", tmp_path / "no")


@pytest.mark.parametrize(("images", "pieces"), [(82, [33, 33, 14, 2]), (140, [33, 33, 14, 33, 27])])
def test_what_is_new_is_behind_the_rest(runs: dict[int, Path], tmp_path: Path, images: int, pieces: list[int]) -> None:
    less, more = tmp_path / "less", tmp_path / "more"
    run_command("index_remove", "--index", runs[80] / "bundle", "--image", 7, "--output", less)
    run_command("index_add", "--index", less, "--run", runs[images], "--output", more)
    bundle = assert_holds(more, runs[images], {7}, images)
    rows = [one["rows"] for one in bundle.card["images"]["pieces"]]
    assert rows == ([33, 33, 16] if images == 82 else pieces)
    kept = {name for name, inode in inodes(less).items() if inodes(more)[name] == inode}
    assert kept >= {f"images-0000{number}.faiss" for number in (0, 1)}
    same = tmp_path / "same"
    run_command("index_add", "--index", more, "--run", runs[images], "--output", same)
    assert inodes(same) == inodes(more)


def test_only_shards_that_are_new_or_changed_are_opened(runs: dict[int, Path], tmp_path: Path) -> None:
    """The tables and the vectors of all others are not even there."""
    run, more = tmp_path / "run", tmp_path / "more"
    shutil.copytree(runs[140], run)
    before, after = (Manifest(runs[count] / "manifest") for count in (80, 140))
    same = [
        number
        for number in range(before.n_shards)
        if before.shard(number).fingerprints == after.shard(number).fingerprints
    ]
    gone = [path for number in same for path in (run / "manifest/shards").glob(f"{number:05d}.*.parquet")]
    gone += [run / f"embeddings/ncca/shard-{number:05d}.h5" for number in same]
    assert len(same) >= 4 and len(gone) == 3 * len(same) and after.n_shards > len(same)
    for path in gone:
        path.unlink()
    run_command("index_add", "--index", runs[80] / "bundle", "--run", run, "--output", more)
    assert_holds(more, runs[140], set(), 140)


def test_another_collection_is_refused(runs: dict[int, Path], tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", images=90, held_out="dev")
    table = Manifest(other / "manifest").images
    assert table["split"].to_pylist() != Manifest(runs[140] / "manifest").images["split"].to_pylist()[:90]
    write_config(other, {"index": INDEX})
    run_command("index_add", "--index", runs[80] / "bundle", "--run", other, "--output", tmp_path / "more")
    assert Bundle(tmp_path / "more").card["images"]["count"] == 90  # splits are not what an image is known by
    fewer = make_run(tmp_path / "fewer", images=40)
    write_config(fewer, {"index": INDEX})
    with pytest.raises(IntegrityError, match="numbers its"):
        run_command("index_add", "--index", tmp_path / "more", "--run", fewer, "--output", tmp_path / "no")


def test_what_cannot_be_is_refused(runs: dict[int, Path], tmp_path: Path) -> None:
    start, every = runs[80] / "bundle", [part for number in range(80) for part in ("--image", number)]
    with pytest.raises(UsageError, match="no images would be left"):
        run_command("index_remove", "--index", start, *every, "--output", tmp_path / "none")
    with pytest.raises(UsageError, match="another folder"):
        run_command("index_remove", "--index", start, "--image", 1, "--output", start)
    assert not (tmp_path / "none").exists() and faiss.read_index(str(start / "images.faiss")).ntotal == 0


def test_another_bundle_joins_the_pieces_that_it_belongs_to(runs: dict[int, Path], tmp_path: Path) -> None:
    """Photographs that both have stay as they are; the folder and the columns of others come with them."""
    write_config(runs[140], {"index": {"exact_limit": 1000}})
    other, less, more = build_bundle(runs[140], output="whole"), tmp_path / "less", tmp_path / "more"
    run_command("index_remove", "--index", runs[80] / "bundle", "--image", 7, "--output", less)
    run_command("index_add", "--index", less, "--from", edited(other, tmp_path / "priced"), "--output", more)
    bundle, roots = Bundle(more), [str(runs[count] / "data") for count in (80, 140)]
    assert [bundle.card["data_root"], *bundle.card["more_roots"]] == roots
    table, given = bundle.table("images"), Manifest(runs[140] / "manifest").images
    # Image 7 was removed, and comes back under a new id.
    right = [*(n for n in range(80)), 7, *range(80, 140)]
    there = table["sha256"].is_valid().to_numpy()
    assert there.tolist() == [n != 7 for n in range(141)]
    assert table["sha256"].filter(there) == given["sha256"].take(np.array(right)[there])
    assert table["merged_root"].to_pylist() == [None] * 80 + [1] * 61
    assert table["price"].to_pylist() == [None] * 80 + [7, *range(80, 140)]
    embeddings = Embeddings(Manifest(runs[140] / "manifest"), runs[140] / "embeddings/ncca")
    index, queries = open_index(bundle, "images"), embeddings.read("images", np.arange(0, 140, 9))
    stages_of(index).inverted.nprobe = 3
    true = np.where(there, queries @ embeddings.read("images", np.array(right)).T, -np.inf)
    np.testing.assert_allclose(index.search(queries, 10)[0], -np.sort(-true, axis=1)[:, :10], atol=1e-5)
    np.testing.assert_array_equal(bundle.table("sentences")["image_id"].take([160, 161, 162]).to_pylist(), [80, 80, 81])
    assert {hit.row["image_id"] for hit in Searcher(bundle).images("a dog", 200, "price > 100")} == set(range(102, 141))
    assert {name for name, inode in inodes(less).items() if inodes(more).get(name) == inode} >= {
        f"{one}-0000{number}.{kind}" for one in NUMBER for number in (0, 1) for kind in ("faiss", "parquet")
    }
    same = tmp_path / "same"
    run_command("index_add", "--index", more, "--from", other, "--output", same)
    assert inodes(same) == inodes(more)
    with pytest.raises(UsageError, match="no run numbers what was joined"):
        run_command("index_add", "--index", more, "--run", runs[140], "--output", tmp_path / "no")
    last = tmp_path / "last"
    run_command("index_remove", "--index", same, "--image", 80, "--image", 0, "--output", last)
    assert Bundle(last).card["images"]["count"] == 138 and Bundle(last).table("images")["price"][80].as_py() is None


def edited(bundle: Path, output: Path) -> Path:
    """A copy of a bundle whose images have a price: their id."""
    source, writer = Bundle(bundle), BundleWriter(output)
    writer.copy(source, but=["images.parquet"])
    table = source.table("images")
    writer.add_table("images.parquet", table.append_column("price", table["image_id"]))
    writer.commit({name: value for name, value in source.card.items() if name != "files"})
    return output


def test_an_image_is_in_the_file_of_its_piece(runs: dict[int, Path]) -> None:
    said = run_command("explain", "35", "--run", runs[80])
    assert "bundle/images-00001.parquet: images row 2\n" in said
    assert "bundle/sentences-00002.parquet: sentences rows 4 to 5\n" in said
    assert "images-00000.parquet" not in said and "images.parquet" not in said

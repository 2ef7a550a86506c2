"""Photos are added to indexes and removed from them, and ids keep their meaning."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from synthetic_multivectors import SCORE, add_fragments, whole_length
from synthetic_run import build_bundle, make_run, retell, run_command, write_config

from pipeline.compute.multivectors import ScoreRule
from pipeline.errors import InputError, IntegrityError, RejectLimitError, UsageError
from pipeline.index.build import remove
from pipeline.index.candidates import build
from pipeline.index.exact import Vectors
from pipeline.index.search import Searcher
from pipeline.metrics.multivector_scores import exact_scores
from pipeline.run.layout import Layout
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.index_changes import hidden_photos, link_shard, photos_of, read_removed
from pipeline.storage.index_shard import IndexShard, IndexWriter
from pipeline.storage.manifest import Manifest
from pipeline.storage.stored_index import open_index
from stages.cli import cli
from stages.index import remove as removing
from stages.index.serve import _stamp

KINDS = [("ncca", "IVF3,Flat", 2), ("dvsa", "Flat", 2), ("dvsa", "IVF", 1)]
REMOVED_IDS = (3, 79)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make the run `small` of 80 images, and the run `large` with the same images and 16 more. Each run has the model
    `ncca` with one vector per image and the multi-vector model `dvsa`."""
    folder = tmp_path_factory.mktemp("runs")
    runs = {name: make_run(folder / name, images=images) for name, images in (("small", 80), ("large", 96))}
    add_fragments(runs["small"], "dvsa", SCORE)
    shutil.copy(runs["small"] / "text/tokens.json", runs["large"] / "text")  # The model must be the same.
    add_fragments(runs["large"], "dvsa", SCORE)
    return runs


def bundle_of(run: Path, factory: str, model: str = "ncca", bundles: int = 1) -> Path:
    limit = 1000 if factory == "Flat" else 10
    index = {"exact_limit": limit, "recall_floor": 0.7, "bundles": bundles}
    index |= {"candidates": [factory]} if model == "ncca" else {}
    write_config(run, {"index": index})
    return build_bundle(run, model=model)


def traces(bundle: Path, vectors: list[np.ndarray], paths: list[str]) -> list[str]:
    """Return the names of the FAISS and array files in an index that contain the bytes of one of the `vectors`,
    followed by the `paths` that are in its tables of images."""
    files = [*bundle.rglob("*.faiss"), *bundle.rglob("fragments.safetensors")]
    found = [path.name for path in files if any(vector.tobytes() in path.read_bytes() for vector in vectors)]
    names = {path for part in open_index(bundle).shards for path in part.table("images")["path"].to_pylist()}
    return [*found, *names.intersection(paths)]


@pytest.mark.parametrize(("model", "factory", "bundles"), KINDS)
def test_photos_are_removed_and_then_added(
    runs: dict[str, Path], tmp_path: Path, model: str, factory: str, bundles: int
) -> None:
    """Removed photos leave no trace and are not added again, and new photos make one more shard. The ids keep their
    meaning, and the results equal an exhaustive comparison of the vectors."""
    start = bundle_of(runs["small"], factory, model, bundles)
    embeddings = Embeddings(Manifest(runs["large"] / "manifest"), runs["large"] / f"embeddings/{model}")
    gone = (
        [*embeddings.read("images", np.array(REMOVED_IDS))]
        if model == "ncca"
        else [*whole_length(np.array(REMOVED_IDS))]
    )
    gone += [np.array([0, 0, 60 + image, 40], np.float32) for image in REMOVED_IDS]  # the boxes of whole images
    paths = embeddings.manifest.images["path"].take(list(REMOVED_IDS)).to_pylist()
    assert traces(start, gone, paths)
    run_command("remove", start, *REMOVED_IDS, "--copy-to", tmp_path / "less")
    assert not traces(tmp_path / "less", gone, paths)
    run_command("add", tmp_path / "less", runs["large"], "--copy-to", tmp_path / "more")
    before, less, more = (open_index(folder) for folder in (start, tmp_path / "less", tmp_path / "more"))
    more.check()
    assert [len(bundle.shards) for bundle in (before, less, more)] == [bundles, bundles, bundles + 1]
    assert len({bundle.card.fingerprint for bundle in (before, less, more)}) == 3

    for modality, each in (("images", 1), ("sentences", 2)):
        table = more.table(modality)
        old = before.table(modality)
        name = f"{modality[:-1]}_id"
        there = table.filter(table["path" if each == 1 else "text"].is_valid())
        assert (table.num_rows, there.num_rows) == (96 * each, 94 * each)
        assert table[name].to_pylist() == list(range(96 * each))
        expected = getattr(embeddings.manifest, modality).take(there[name].to_numpy())
        assert there.select(expected.column_names).equals(expected)
        assert old[name].to_pylist() == list(range(80 * each))

    searcher = Searcher(more)
    alive = np.setdiff1d(np.arange(96), REMOVED_IDS)
    query = embeddings.read("sentences", np.array([6]))  # a horse
    items = embeddings.read("images", alive)
    scores = exact_scores(items, query, ScoreRule(**SCORE))[:, 0] if model == "dvsa" else items @ query[0]
    hits = searcher.nearest("images", query, 12)[0]
    named = [hit.row["path"].partition("-")[0] for hit in hits]
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(scores)[::-1][:12], rtol=1e-5, atol=1e-6)
    assert named.count("horse") == 11  # There were 12 horses, and image 3 is removed.
    assert not {hit.row["image_id"] for hit in searcher.nearest("images", query, 96)[0]}.intersection(REMOVED_IDS)


def test_run_of_a_compressed_index_does_not_name_code(runs: dict[str, Path], tmp_path: Path) -> None:
    built = bundle_of(runs["small"], "SQ8")
    start = shutil.copytree(built, runs["small"] / "index/rounded")
    assert open_index(start).card.images.factory == "SQ8"
    write_config(runs["small"], {"models": [{"name": "mine", "model": "nowhere:Class"}]})
    run_command("remove", start, REMOVED_IDS[0], "--copy-to", tmp_path / "less")
    assert open_index(tmp_path / "less").card.images.count == 79


def test_shard_of_other_photos_stays_next_to_the_shards_of_the_run(
    runs: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The photos of another index have ids that the index uses already, so they get larger ids when they are added. The
    log counts the photos, and new photos of the run are still added afterwards."""
    caplog.set_level("INFO")
    start = bundle_of(runs["small"], "Flat")
    less = tmp_path / "less"
    run_command("remove", start, *range(8), "--copy-to", less)
    stranger = build_bundle(make_run(tmp_path / "other", images=24))
    run_command("add", less, stranger, "--copy-to", tmp_path / "both")
    assert "8 of 24 photos" in caplog.text and "16 photos" in caplog.text
    run_command("add", tmp_path / "both", runs["large"], "--copy-to", tmp_path / "all")
    images = open_index(tmp_path / "all").table("images")
    assert images["image_id"].to_pylist() == [*range(104), *range(184, 200)]
    assert images["bundle"].to_pylist() == [0] * 80 + [1] * 24 + [2] * 16
    run_command("remove", tmp_path / "all", 83)
    less = open_index(tmp_path / "all")
    assert less.shards[1].table("images")["path"][3].as_py() is None
    assert less.table("sentences").filter(pc.field("text").is_null())["image_id"].to_pylist()[16:] == [83, 83]
    assert {hit.row["image_id"] for hit in Searcher(less).images("horse", 14)} >= {11, 91, 99}


def test_index_is_changed_in_place(runs: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`add` and `remove` change an index without --copy-to. The former names of the commands, `index-add` and
    `index-remove`, have the same effect with their former options. Photos that are already in the index are counted,
    and no temporary file remains."""
    caplog.set_level("INFO")
    start = shutil.copytree(bundle_of(runs["small"], "Flat"), tmp_path / "index")
    files = {path.name for path in start.rglob("*")}
    for source in (runs["small"], start):
        run_command("add", start, source)
        expected = f"The command has added 0 of 80 photos of {source} to {start}. The index already has all of them."
        assert expected in caplog.messages
    assert {path.name for path in start.rglob("*")} == files
    for former, named in (("index-add", "--from"), ("index-remove", "--image")):
        words = [former, named, "5", "--index", str(start), f"--output={tmp_path / 'less'}"]
        name, _, translated = cli.resolve_command(click.Context(cli), words)
        assert (name, translated) == (former[6:], [str(start), "5", "--copy-to", str(tmp_path / "less")])
    run_command(name, *translated)
    run_command("remove", start, "5", "dog-0.png")
    assert [len(read_removed(IndexShard(folder))) for folder in (start, tmp_path / "less")] == [2, 1]
    assert {path.name for path in start.rglob("*")} == {*files, "removed.txt"}
    run_command("add", start, runs["small"])  # The removed photos are not added again.
    assert "0 of 78 photos" in caplog.text
    run_command("add", start, runs["large"])
    assert open_index(start).card.images.count == 94
    open_index(start).check()


def test_all_photos_of_one_shard_can_be_removed(runs: dict[str, Path], tmp_path: Path) -> None:
    start = bundle_of(runs["small"], "Flat", bundles=4)
    run_command("remove", start, *range(20, 40), "--copy-to", tmp_path / "less")
    same = [
        (start / number / "images.faiss").samefile(tmp_path / "less" / number / "images.faiss")
        for number in ("00", "01", "02", "03")
    ]
    assert same == [True, False, True, True]  # All shards are links except the changed shard.
    hits = Searcher(open_index(tmp_path / "less")).images("a dog", 80)
    assert sorted(hit.row["image_id"] for hit in hits) == [*range(20), *range(40, 80)]


@pytest.mark.parametrize("model", ["ncca", "dvsa"])
def test_impossible_changes_are_refused_with_a_reason(runs: dict[str, Path], tmp_path: Path, model: str) -> None:
    start = bundle_of(runs["small"], "Flat", model)
    everything = tmp_path / "all.txt"
    nothing = tmp_path / "none.txt"
    everything.write_text("\n".join(map(str, range(80))))
    nothing.write_text(f"80\n{'9' * 5000}\n")
    other = make_run(tmp_path / "other", images=20)
    add_fragments(other, "dvsa", SCORE)
    foreign = shutil.copytree(start, tmp_path / "foreign")
    retell(foreign / "card.json", "inputs", "model", value="another")
    for error, named, arguments in (
        *((UsageError, "No name matches exactly one photo of", [number]) for number in (80, 10**23, "9" * 4000)),
        (InputError, "every photo of .* \\(80 photos\\).*delete this folder", ["--from-file", everything]),
        (UsageError, "No photo was named.*: `jointspace remove .*/small/bundle .*/small/data/.*png`", []),
        (UsageError, "No name matches exactly one photo of", ["--from-file", nothing]),
    ):
        with pytest.raises(error, match=named):
            run_command("remove", start, *arguments, "--copy-to", tmp_path / "a")
    for error, named, source in (
        (UsageError, "another model", foreign),
        *([(IntegrityError, r"do not agree \(compared: model\)", other)] if model == "dvsa" else []),
    ):
        with pytest.raises(error, match=named):
            run_command("add", start, source, "--copy-to", tmp_path / "a")
    with pytest.raises(UsageError, match="exists"):
        run_command("add", start, runs["large"], "--copy-to", start)
    assert not (tmp_path / "a").exists()
    IndexShard(start).check()


def test_lines_of_a_list_that_match_nothing_are_reported(
    runs: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The list of `remove` has an id, a path, other spellings of a path and an absolute path. All of them match. Each
    line that matches no photo is reported, and the exit code is 3."""
    start = bundle_of(runs["small"], "Flat")
    bundle = IndexShard(start)
    paths = bundle.table("images")["path"].to_pylist()
    lines = ["# asked for", "5", paths[6], f".\\{paths[7]}", f"{bundle.card.data_root}/{paths[8]}", paths[9].upper()]
    strangers = ["80", "007", "9" * 50, "nobody.png"]
    (tmp_path / "gone.txt").write_bytes(("\ufeff" + "\r\n".join([*lines, *strangers, ""])).encode())
    with pytest.raises(RejectLimitError, match=r"4 names did not match exactly one photo") as failure:
        run_command("remove", start, "--from-file", tmp_path / "gone.txt", "--copy-to", tmp_path / "less")
    assert failure.value.exit_code == 3
    gone = IndexShard(tmp_path / "less").table("images")["path"].to_pylist()
    assert [row for row, path in enumerate(gone) if path is None] == [5, 6, 7, 8, 9]
    assert all(repr(line) in caplog.text for line in strangers)


def test_a_photo_that_was_removed_before_is_named_once(
    runs: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = shutil.copytree(bundle_of(runs["small"], "Flat"), tmp_path / "index")
    first, second, *_ = open_index(index).table("images")["path"].to_pylist()
    run_command("remove", index, first)
    caplog.clear()
    with pytest.raises(UsageError, match=f"one photo of {index}: '{first}' was removed before.$"):
        run_command("remove", index, first)
    assert first not in caplog.text
    with pytest.raises(UsageError, match=r"'id:0' matches no photo\. Write whole paths, or names as"):
        run_command("remove", index, "id:0")
    with pytest.raises(
        RejectLimitError, match=r"2 names .*listed above\. Write .* The photos of the other names were removed"
    ):
        run_command("remove", index, first, second, "nobody.png")
    assert f"'{first}' was removed before" in caplog.text
    assert "'nobody.png' matches no photo" in caplog.text


@pytest.mark.parametrize(
    "factory", ["HNSW8", "IVF2,PQ4x4fsr,RFlat", "IVF2,PQ8x4fs", "IVF2,PQ8x4fsr,Refine(SQ8)", "SQ8", "IDMap,Flat"]
)
def test_index_types_from_which_faiss_cannot_remove_vectors_are_rebuilt(factory: str) -> None:
    vectors = np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32)
    index = build(factory.removeprefix("IDMap,"), Vectors(vectors), "inner_product").index
    card = SimpleNamespace(factory=factory, metric="inner_product", nprobe=2, efSearch=50, k_factor=8)
    gone = np.array([0, 7, 199])
    rest = np.setdiff1d(np.arange(200), gone)
    less, made = remove(index, gone, rest, lambda: Vectors(vectors[rest]), card)
    assert made == "IDMap," + factory.removeprefix("IDMap,") and less.ntotal == 197
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = less.search(unit, 197)[1]
    assert set(rows.ravel()) <= {-1, *rest.tolist()} and (rows[rest, :20] == rest[:, None]).any(axis=1).mean() > 0.95


@pytest.mark.parametrize("factory", ["Flat", "SQ8", "HNSW8", "IVF2,SQ8,RFlat"])
def test_a_card_of_another_type_does_not_change_the_remaining_ids(factory: str) -> None:
    vectors = np.random.default_rng(1).standard_normal((200, 8)).astype(np.float32)
    index = build(factory, Vectors(vectors), "inner_product").index
    rest = np.arange(3, 200)
    card = SimpleNamespace(factory="IVF2,Flat", metric="inner_product", nprobe=2, efSearch=None, k_factor=None)
    less, _ = remove(index, np.arange(3), rest, lambda: Vectors(vectors[rest]), card)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert (less.search(unit[rest], 20)[1] == rest[:, None]).any(axis=1).mean() > 0.95


def test_example_program_does_not_need_jointspace(runs: dict[str, Path]) -> None:
    source = (ROOT / "examples" / "nearest_photos.py").read_text()
    assert len(source.splitlines()) <= 36 and "pipeline" not in source
    result = subprocess.run(
        [sys.executable, ROOT / "examples" / "nearest_photos.py", bundle_of(runs["small"], "HNSW8"), "8"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = [line.split() for line in result.stdout.splitlines()]
    assert len(lines) == 5 and lines[0][1].startswith("dog-")


@pytest.fixture
def run_indexes(runs: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """Copy the manifest and the indexes of both models of the small run to a new run folder, where the stages would
    write them. Return model -> folder of its index."""
    for model in ("ncca", "dvsa"):
        shutil.copytree(bundle_of(runs["small"], "Flat", model), tmp_path / "run/index" / model)
    shutil.copytree(runs["small"] / "manifest", tmp_path / "run/manifest")
    return {model: tmp_path / "run/index" / model for model in ("ncca", "dvsa")}


def paths_of(*folders: Path) -> list[set[str]]:
    return [{photo.path for photo in photos_of(open_index(folder))} for folder in folders]


def test_a_removal_reaches_every_index_of_the_run(
    run_indexes: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    alone = shutil.copytree(run_indexes["dvsa"], tmp_path / "alone/index/dvsa")
    run_command("remove", run_indexes["dvsa"], "cat-1.png", "id:8")
    assert f"has removed 2 photos from {run_indexes['dvsa']}, {run_indexes['ncca']}: id:1 (" in caplog.text
    for folder, there in zip(run_indexes.values(), paths_of(*run_indexes.values()), strict=True):
        assert len(there) == 78 and there.isdisjoint(("cat-1.png", "dog-8.png"))
        assert [*read_removed(IndexShard(folder))] == ["cat-1.png", "dog-8.png"]
        assert not {1, 8} & {hit.row["image_id"] for hit in Searcher(open_index(folder)).images("a dog", 80)}
    run_command("remove", run_indexes["ncca"], "cat-9.png", "--copy-to", tmp_path / "copy")
    run_command("remove", alone, "cat-17.png")
    assert [len(there) for there in paths_of(*run_indexes.values(), alone, tmp_path / "copy")] == [78, 78, 79, 77]


def test_a_removal_that_was_killed_is_completed_by_the_same_command(
    run_indexes: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`remove` is killed after it has changed one of two indexes. `serve` hides the photo in the other index until the
    same command has completed the removal."""
    original = removing._remove_from
    calls = []

    def die_at_the_second(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError("killed")
        original(*arguments)

    monkeypatch.setattr(removing, "_remove_from", die_at_the_second)
    with pytest.raises(OSError, match="killed"):
        run_command("remove", run_indexes["ncca"], "id:3")
    assert [len(there) for there in paths_of(*run_indexes.values())] == [80, 79]
    assert [hidden_photos(open_index(path), path) for path in run_indexes.values()] == [[3], []]
    monkeypatch.undo()
    run_command("remove", run_indexes["ncca"], "id:3")
    assert [len(there) for there in paths_of(*run_indexes.values())] == [79, 79]


def test_removing_one_of_two_entries_of_a_photo_does_not_list_the_photo_as_removed(
    run_indexes: dict[str, Path],
) -> None:
    index = run_indexes["ncca"]
    link_shard(IndexShard(index), index / "added/00-again")
    with pytest.raises(UsageError, match=r"id:5 \(.*house-5.png\) or id:85 \("):
        run_command("remove", index, "house-5.png")
    run_command("remove", index, "id:85")
    assert sum(photo.path == "house-5.png" for photo in photos_of(open_index(index))) == 1
    assert "house-5.png" in paths_of(run_indexes["dvsa"])[0] and not [*index.parent.rglob("removed.txt")]


def test_photos_removed_from_an_addition_are_listed_for_the_next_ingest(
    run_indexes: dict[str, Path], runs: dict[str, Path]
) -> None:
    index = run_indexes["ncca"]
    root = str(runs["large"] / "data")
    retell(index / "card.json", "data_root", value=root)
    run_command("add", index, runs["large"], "--copy-to", index.with_name("grown"))
    grown = index.with_name("grown")
    run_command("remove", grown, "dog-88.png")
    assert "dog-88.png" in read_removed(IndexShard(grown)) and grown / "removed.txt" in Layout(index.parents[1]).removed


def test_a_removed_photo_with_a_line_break_in_its_name_is_listed_as_one_photo(run_indexes: dict[str, Path]) -> None:
    index = run_indexes["ncca"]
    odd = "cat\n1\r\tx.png"
    bundle = IndexShard(index)
    writer = IndexWriter(index)
    table = bundle.table("images")
    paths = pc.replace_substring(table["path"].combine_chunks(), "cat-1.png", odd)
    writer.add_table("images.parquet", table.set_column(table.column_names.index("path"), "path", paths))
    writer.link(bundle, but={"images.parquet"})
    writer.commit(source=bundle.card)
    run_command("remove", index, "id:1", "dog-8.png")
    assert [*read_removed(IndexShard(index))] == [odd, "dog-8.png"]


def test_photos_are_removed_by_a_condition_after_the_user_confirms(run_indexes: dict[str, Path]) -> None:
    index = run_indexes["ncca"]
    condition = "'tree' in path and width < 100"
    named = {f"tree-{number}.png" for number in range(6, 40, 8)}
    with pytest.raises(UsageError, match="--yes to remove the 5 photos"):
        run_command("remove", index, "--where", condition)
    result = CliRunner().invoke(cli.get_command(None, "remove"), [str(index), "--where", condition])
    assert {line.rpartition("/")[2].rstrip(")") for line in result.stdout.splitlines()} == named
    assert paths_of(index)[0] >= named
    run_command("remove", index, "--where", condition, "--yes")
    assert all(len(there) == 75 and there.isdisjoint(named) for there in paths_of(*run_indexes.values()))
    with pytest.raises(UsageError, match="No photo of .* satisfies"):
        run_command("remove", index, "--where", condition, "--yes")
    with pytest.raises(UsageError, match="not both"):
        run_command("remove", index, "dog-0.png", "--where", condition)


def test_a_name_that_two_folders_contain_is_refused_with_both_paths(runs: dict[str, Path], tmp_path: Path) -> None:
    other = build_bundle(make_run(tmp_path / "other", images=24))
    both = tmp_path / "both"
    run_command("remove", bundle_of(runs["small"], "Flat"), *range(8), "--copy-to", tmp_path / "less")
    run_command("add", tmp_path / "less", other, "--copy-to", both)
    first, second = (f"{part.card.data_root}/dog-8.png" for part in open_index(both).shards)
    printed = run_command("search", "--index", both, "a dog", "--top-k", 20)
    assert first in printed and second in printed
    with pytest.raises(UsageError) as refused:
        run_command("remove", both, "dog-8.png")
    assert f"id:8 ({first}) or id:88 ({second})" in str(refused.value)
    for number, way in enumerate((second, "id:88")):
        run_command("remove", both, way, "--copy-to", tmp_path / f"{number}")
        left = {photo.whole for photo in photos_of(open_index(tmp_path / f"{number}"))}
        assert first in left and second not in left and len(left) == 95


def test_photos_are_added_to_every_index_of_the_run_that_can_take_them(
    run_indexes: dict[str, Path], runs: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run_command("add", run_indexes["ncca"], runs["large"])
    assert [len(there) for there in paths_of(*run_indexes.values())] == [96, 96]
    for path in run_indexes.values():
        assert f"added 16 of 96 photos of {runs['large']} to {path}. The index already has" in caplog.text
    other = build_bundle(make_run(runs["small"].with_name("third"), images=24))
    run_command("remove", run_indexes["ncca"], *range(4))
    run_command("add", run_indexes["ncca"], other)
    assert f"The photos were not added to {run_indexes['dvsa']}: " in caplog.text
    assert "4 photos of" in caplog.text and "were removed before and are back" in caplog.text


def test_captions_that_an_addition_loses_are_counted(
    runs: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`add` brings the captions of new photos only, and counts the captions of the run that the index lacks although
    the index already has their photos."""
    start = shutil.copytree(bundle_of(runs["small"], "Flat"), tmp_path / "index")
    run_command("add", start, runs["large"])
    assert "skipped" not in caplog.text
    table = IndexShard(start).table("sentences")
    texts = pc.replace_substring(table["text"].combine_chunks(), "number 7", "without it")
    less = table.set_column(table.column_names.index("text"), "text", texts)
    bundle = IndexShard(start)
    writer = IndexWriter(start)
    writer.add_table("sentences.parquet", less)
    writer.link(bundle, but={"sentences.parquet"})
    writer.commit(source=bundle.card)
    run_command("add", start, runs["large"])
    # These are the captions of image 7 and of the images 70 to 79.
    assert "with other captions (number of these captions: 11)" in caplog.text


def test_a_damaged_index_of_the_run_does_not_hide_a_change_of_another(run_indexes: dict[str, Path]) -> None:
    index, other = run_indexes.values()
    (other / "private").symlink_to(ROOT / "README.md")
    before = _stamp(index)
    assert before is not None and _stamp(other) is None
    (index / "removed.txt").write_text("dog-0.png\n")
    assert _stamp(index) not in (before, None)


@pytest.mark.parametrize("link", ["removed.txt", "00"])
def test_ingest_reads_no_list_of_removed_photos_through_a_link(tmp_path: Path, link: str) -> None:
    index = tmp_path / "run/index/ncca"
    private = tmp_path / "private/removed.txt"
    for folder in (index, private.parent):
        folder.mkdir(parents=True)
    private.write_text("secret\n")
    (index / link).symlink_to(private if link == "removed.txt" else private.parent)
    with pytest.raises(IntegrityError, match=f"{link} is a link"):
        _ = Layout(tmp_path / "run").removed

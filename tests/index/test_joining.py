"""Bundles that change by the vectors in their own indices: joined, made smaller, exported; and what is refused."""

import json
import shlex
import shutil
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, _NamedTextIOWrapper
from made_up import build_bundle, make_run, run_command
from made_up_sets import add_fragments

from pipeline.errors import IntegrityError, UsageError
from pipeline.index.filtering import is_exact, reconstruct
from pipeline.index.joining import exact_vectors
from pipeline.storage.bundle import Bundle, BundleWriter
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest
from stages.cli import cli


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of 40 images, and another of 56, of which the first 40 are the same, in another folder."""
    folder = tmp_path_factory.mktemp("runs")
    return {"small": make_run(folder / "small", images=40), "large": make_run(folder / "large", images=56)}


@pytest.fixture(scope="module")
def small(runs: dict[str, Path]) -> Path:
    return build_bundle(runs["small"])


@pytest.fixture(scope="module")
def large(runs: dict[str, Path]) -> Path:
    return build_bundle(runs["large"])


@pytest.fixture(scope="module")
def joined(small: Path, large: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return join(small, large, tmp_path_factory.mktemp("joined") / "both")


def join(first: Path, second: Path, output: Path) -> Path:
    run_command("index-add", "--index", first, "--from", second, "--output", output)
    return output


def test_on_a_terminal_a_new_bundle_comes_with_a_search_of_it(
    small: Path, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed command finds something when it is given as it stands."""
    changes = {
        "joined": ("index-add", "--index", small, "--from", large),
        "smaller": ("index-remove", "--index", small, "--image", 0),
    }
    for name, (command, *arguments) in changes.items():
        run = [cli.get_command(None, command), [*map(str, arguments), "--output", str(tmp_path / name)]]
        with monkeypatch.context() as patch:
            patch.setattr(_NamedTextIOWrapper, "isatty", lambda stream: True, raising=False)
            said = CliRunner().invoke(*run, catch_exceptions=False).stderr
        following = shlex.split(said[said.index("next: ") :].splitlines()[0])[1:]
        assert following[:4] == ["jointspace", "search", "--index", str(tmp_path / name)]
        assert run_command(*following[1:]).split()[0] == "1"


def index_of(factory: str) -> dict:
    return {"index": {"exact_limit": 1, "candidates": [factory], "sample": 1000, "recall_floor": 0.5}}


def edited(bundle: Path, output: Path, column: str, values: pa.Array, **card: object) -> Path:
    """A copy of a bundle whose images have another column, and whose card says otherwise."""
    source, writer = Bundle(bundle), BundleWriter(output)
    writer.copy(source, but=["images.parquet"])
    writer.add_table("images.parquet", source.table("images").append_column(column, values))
    writer.commit({**{name: value for name, value in source.card.items() if name != "files"}, **card})
    return output


def assert_vectors(bundle: Path, run: Path, gone: tuple[int, ...] = ()) -> None:
    """The bundle gives the vectors of the run's images under their ids, but for those that are gone."""
    table, manifest = Bundle(bundle).table("images"), Manifest(run / "manifest")
    rows = np.flatnonzero(table["sha256"].is_valid().to_numpy())
    ids = table["image_id"].to_numpy()[rows]
    assert ids.tolist() == [one for one in range(manifest.images.num_rows) if one not in gone]
    right = Embeddings(manifest, run / "embeddings/ncca").read("images", ids)
    np.testing.assert_array_equal(exact_vectors(Bundle(bundle), "images", rows), right)


@pytest.mark.parametrize("factory", ["Flat", "IVF3,Flat", "HNSW8", "IVF2,PQ4x4fsr,RFlat"])
def test_bundles_with_removed_images_are_joined(runs: dict[str, Path], tmp_path: Path, factory: str) -> None:
    first, second = (build_bundle(runs[one], index_of(factory), output=factory) for one in ("small", "large"))
    for name, bundle, image in (("first", first, 3), ("second", second, 50)):
        run_command("index-remove", "--index", bundle, "--image", image, "--output", tmp_path / name)
    table = Bundle(join(tmp_path / "first", tmp_path / "second", tmp_path / "both")).table("images")
    rows = np.flatnonzero(table["sha256"].is_valid().to_numpy())
    # Image 3 of the first is gone, and comes back from the second, as its first new one.
    paths = [*(n for n in range(40) if n != 3), 3, *(n for n in range(40, 56) if n != 50)]
    assert [int(one.split("-")[1].partition(".")[0]) for one in table["path"].take(rows).to_pylist()] == paths
    right = Embeddings(Manifest(runs["large"] / "manifest"), runs["large"] / "embeddings/ncca")
    found = exact_vectors(Bundle(tmp_path / "both"), "images", rows)
    np.testing.assert_array_equal(found, right.read("images", np.array(paths)))


def test_what_was_joined_is_maintained_without_a_run(runs: dict[str, Path], joined: Path, tmp_path: Path) -> None:
    assert_vectors(joined, runs["large"])
    images = ("--image", 3, "--image", 50)
    run_command("index-remove", "--index", joined, *images, "--output", tmp_path / "less")
    assert_vectors(tmp_path / "less", runs["large"], gone=(3, 50))
    less = Bundle(tmp_path / "less")
    less.check()
    assert (less.card["images"]["count"], less.card["sentences"]["count"]) == (54, 108)
    assert less.card["more_roots"] == Bundle(joined).card["more_roots"]
    with pytest.raises(IntegrityError, match="numbers its images otherwise .* remove without --run"):
        run_command("index-remove", "--index", joined, *images, "--run", runs["small"], "--output", tmp_path / "other")


def test_a_run_is_needed_where_the_vectors_are_not_in_the_index(runs: dict[str, Path], tmp_path: Path) -> None:
    rounded = build_bundle(runs["small"], index_of("SQfp16"), output="rounded")
    with pytest.raises(UsageError, match=r"\(SQfp16\) has rounded its vectors; change it by its run \(--run\)"):
        run_command("index-remove", "--index", rounded, "--image", 3, "--output", tmp_path / "less")
    add_fragments(run := make_run(tmp_path / "run"), "dvsa", {"sum": "words", "global_weight": 0})
    several = build_bundle(run, model="dvsa", output="several")
    with pytest.raises(UsageError, match=r"has several vectors an image; change it by its run \(--run\)"):
        run_command("index-remove", "--index", several, "--image", 3, "--output", tmp_path / "less")


def test_no_bundle_that_is_read_is_overwritten(runs: dict[str, Path], small: Path, large: Path, tmp_path: Path) -> None:
    """A folder that holds one bundle stands for this, so that the names of both may differ."""
    first, second = (shutil.copytree(one, tmp_path / name / "it") for one, name in ((small, "a"), (large, "b")))
    before = (first / "card.json").read_bytes(), (second / "card.json").read_bytes()
    for index, other, output in ((tmp_path / "a", second, first), (first, tmp_path / "b", second)):
        with pytest.raises(UsageError, match="it is a bundle to start from; give --output another folder"):
            join(index, other, output)
    with pytest.raises(UsageError, match="it is a bundle to start from"):
        run_command("index-remove", "--index", tmp_path / "a", "--run", runs["small"], "--image", 3, "--output", first)
    assert ((first / "card.json").read_bytes(), (second / "card.json").read_bytes()) == before


def test_lists_on_disk_are_joined_to_others(runs: dict[str, Path], small: Path, tmp_path: Path) -> None:
    on_disk = build_bundle(runs["large"], index_of("IVF3,Flat"), output="disk", on_disk=True)
    assert (on_disk / "images.lists").exists()
    assert_vectors(join(small, on_disk, tmp_path / "both"), runs["large"])
    with pytest.raises(UsageError, match="has its inverted lists on disk"):
        join(on_disk, small, tmp_path / "other")


def test_a_column_of_two_types_is_joined(small: Path, large: Path, tmp_path: Path) -> None:
    whole = edited(small, tmp_path / "whole", "price", pa.array(range(40), pa.int64()))
    parts = edited(large, tmp_path / "parts", "price", pa.array(np.arange(56) + 0.5))
    table = Bundle(join(whole, parts, tmp_path / "both")).table("images")
    assert table["price"].to_pylist() == [*map(float, range(40)), *(np.arange(40, 56) + 0.5)]


def test_folders_that_are_no_numbers_are_refused(small: Path, large: Path, tmp_path: Path) -> None:
    named = edited(large, tmp_path / "named", "merged_root", pa.array([["a"]] * 56))
    with pytest.raises(IntegrityError, match="has no column merged_root of type int64"):
        join(small, named, tmp_path / "both")


def test_an_export_says_where_the_photographs_of_both_are(runs: dict[str, Path], joined: Path, tmp_path: Path) -> None:
    run_command("export", joined, "--to", "clip-retrieval", "--output", tmp_path / "out")
    metadata = pq.read_table(tmp_path / "out/images/metadata/metadata_0.parquet").to_pylist()
    places = [Path(row["image_path"]) for row in metadata]
    assert [one.parent for one in places] == [runs["small"] / "data"] * 40 + [runs["large"] / "data"] * 16
    assert all(one.is_file() for one in places)
    card = json.loads((tmp_path / "out/export.json").read_text())
    assert [card["data_root"], *card["more_roots"]] == [str(runs[one] / "data") for one in ("small", "large")]


def test_columns_of_yours_make_way_for_those_of_an_export(small: Path, tmp_path: Path) -> None:
    mine = edited(small, tmp_path / "mine", "image_path", pa.array(["mine"] * 40))
    mine = edited(mine, tmp_path / "ours", "vector", pa.array(["mine too"] * 40))
    run_command("export", mine, "--to", "clip-retrieval", "--output", tmp_path / "out")
    table = pq.read_table(tmp_path / "out/images/metadata/metadata_0.parquet")
    assert set(table["own_image_path"].to_pylist()) == {"mine"} and table.column_names.count("image_path") == 1
    assert all(Path(one).is_file() for one in table["image_path"].to_pylist())
    run_command("export", mine, "--to", "parquet", "--output", tmp_path / "parquet")
    table = pq.read_table(tmp_path / "parquet/images.parquet")
    assert set(table["own_vector"].to_pylist()) == {"mine too"} and len(table["vector"][0]) == 8


@pytest.mark.parametrize(
    "factory",
    ["Flat", "IDMap,Flat", "IVF4,Flat", "IVF4_HNSW8,Flat", "HNSW8", "PQ4x4fs,RFlat", "PCA4,IVF4,PQ4x4fs,Refine(Flat)",
     "SQ8", "HNSW8_SQ8", "IVF4,SQ8", "PCA4,Flat", "PCA4,IVF4,Flat", "OPQ4,IVF4,Flat", "IVF4,PQ4x4fs,Refine(SQ8)"],
)  # fmt: skip
def test_an_index_is_exact_that_gives_its_vectors_back(factory: str) -> None:
    vectors = np.random.default_rng(0).standard_normal((400, 8)).astype(np.float32)
    index = faiss.index_factory(8, factory)
    index.train(vectors)
    index.add_with_ids(vectors, np.arange(400)) if "IDMap" in factory else index.add(vectors)
    assert is_exact(index) == np.array_equal(reconstruct(index, np.arange(400)), vectors)

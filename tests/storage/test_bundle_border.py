"""Bundles: nothing outside of their folder, no unlisted code, and regions that fit their images."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from made_up import build_bundle, make_run, run_command

from pipeline.errors import IntegrityError, UsageError
from pipeline.index.search import Searcher
from pipeline.storage.bundle import REGIONS, Bundle, BundleWriter
from pipeline.storage.card import CARD
from pipeline.storage.json_files import to_json
from pipeline.storage.parsers import load_carried_parser
from pipeline.storage.tables import CORNERS, vectors_column

INDEX = {
    "factory": "Flat", "metric": "inner_product", "dim": 1, "count": 0, "bytes": 0, "nprobe": None, "efSearch": None,
    "k_factor": None, "recall@10": 1.0, "queries": 1, "queries_per_second": 1.0, "latency_ms": 1.0,
    "build_seconds": 1.0,
}  # fmt: skip
SOUND = {
    "model": "ncca", "registered": "ncca", "metric": "inner_product", "dim": 1, "inputs": {"parser": "p"},
    "fingerprint": "f", "splits": [], "data_root": "/", "encoders": {}, "images": INDEX, "sentences": INDEX,
}  # fmt: skip
"""A card that has all that a card has."""


def forge(folder: Path, name: str) -> Path:
    """A bundle whose card names `name`, an empty file."""
    nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    folder.mkdir(parents=True)
    (folder / CARD).write_bytes(to_json({**SOUND, "files": {name: {"bytes": 0, "sha256": nothing}}}))
    return folder


@pytest.mark.parametrize("name", ["../secret", "k/../../secret", "k/secret"])
def test_a_foreign_card_opens_no_file_outside(name: str, tmp_path: Path) -> None:
    bundle = forge(tmp_path / "bundle", name)
    (tmp_path / "secret").touch()
    (bundle / "k").symlink_to(tmp_path)
    with pytest.raises(IntegrityError, match="card.json names '"):
        Bundle(bundle).check()


@pytest.mark.parametrize("name", ["../secret", "k/secret"])
def test_no_bundle_is_written_outside_its_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new/k").symlink_to(tmp_path)
    (tmp_path / "secret").write_text("precious")
    writer = BundleWriter(tmp_path / "new")
    with pytest.raises(IntegrityError, match="names"):
        writer.add(name, b"evil")
    assert (tmp_path / "secret").read_text() == "precious"


def carry(tmp_path: Path, listed: list[str], package: str | None = None) -> Bundle:
    """A bundle with spaCy's files `listed` in its card."""
    writer = BundleWriter(tmp_path / "bundle")
    for name in listed:
        writer.add(name, b"part of a pipeline")
    told = {"engine": "spacy", "package": package, "max_words": 9, "spacy": "3.8"}
    writer.commit({**SOUND, "parse": told})
    return Bundle(tmp_path / "bundle")


def test_spacy_is_given_no_file_that_the_card_does_not_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    monkeypatch.setattr("pipeline.storage.parsers.load_parser", loaded.append)
    bundle = carry(tmp_path, ["parser/config.cfg", "parser/vocab/strings.json"])
    load_carried_parser(bundle.folder, bundle.card)
    (bundle.folder / "parser/vocab/more").write_text("unlisted")
    with pytest.raises(IntegrityError, match="parser/vocab/more is not in the card"):
        load_carried_parser(bundle.folder, bundle.card)
    assert loaded == [str(bundle.folder / "parser/")]


@pytest.mark.parametrize("package", ["../evil", "/tmp/evil", "evil", "a b", "", "no-such-package-anywhere"])
def test_a_card_names_a_package_and_no_folder(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.storage.parsers.load_parser", lambda name: pytest.fail(f"loads {name}"))
    bundle = carry(tmp_path, [], package)
    (tmp_path / "evil").mkdir()
    (bundle.folder / "evil").mkdir()
    with pytest.raises(UsageError, match="install it"):
        load_carried_parser(bundle.folder, bundle.card)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_bundle(make_run(tmp_path_factory.mktemp("run")))


def rewrite(plain: Path, folder: Path, add) -> Bundle:
    """The bundle `plain` with what `add(writer)` writes too."""
    bundle, writer = Bundle(plain), BundleWriter(folder)
    writer.link(bundle)
    add(writer)
    writer.commit({name: value for name, value in bundle.card.items() if name != "files"})
    return Bundle(folder)


def embedded(image_id: list[int], number: list[int], dim: int) -> SimpleNamespace:
    """What `embed-phrases` would have written of these regions."""
    boxes = np.arange(4.0 * len(image_id)).reshape(-1, 4)
    vectors = np.random.default_rng(0).standard_normal((len(image_id), dim), dtype=np.float32)
    regions = pa.table({"image_id": image_id, "number": number})
    return SimpleNamespace(regions=regions, boxes=boxes, region_vectors=vectors)


def test_they_are_those_of_the_bundles_images_without_whole_ones(plain: Path, tmp_path: Path) -> None:
    dim = Bundle(plain).card["dim"]
    ids = Bundle(plain).table("images")["image_id"].to_numpy()[2:]  # as of a bundle without the first two
    one, two = embedded([0, 2, 2, 3], [1, 0, 1, 1], dim), embedded([5], [2], dim)
    found = rewrite(plain, tmp_path / "made", lambda writer: writer.add_regions(ids, [one, two])).image_regions()
    assert found.rows.tolist() == [0, 1, 3]
    np.testing.assert_array_equal(found.boxes, np.concatenate([one.boxes[2:], two.boxes]))
    np.testing.assert_array_equal(found.vectors, np.concatenate([one.region_vectors[2:], two.region_vectors]))


def test_they_go_with_their_image_and_with_the_bundle_that_had_them(plain: Path, tmp_path: Path) -> None:
    bundle = Bundle(plain)
    ids = bundle.table("images")["image_id"].to_numpy()
    regions = embedded([4, 4, 7], [1, 2, 1], bundle.card["dim"])
    made = rewrite(plain, tmp_path / "made", lambda writer: writer.add_regions(ids, [regions]))
    run_command("remove", made.folder, 4, "--output", tmp_path / "less")
    assert Bundle(tmp_path / "less").image_regions().rows.tolist() == [7]
    run_command("remove", tmp_path / "less", 7, "--output", tmp_path / "none")
    assert len(Bundle(tmp_path / "none").image_regions().vectors) == 0
    former = rewrite(plain, made.folder, lambda writer: None)
    assert former.image_regions() is None and not (made.folder / REGIONS).exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"row": pa.array([24])}, "names rows beyond"),
        ({"row": pa.array([-1])}, "names rows beyond"),
        ({"row": pa.array([None], pa.int64())}, "has empty cells"),
        ({"x1": pa.array([np.nan], pa.float32())}, "not finite"),
        ({"vector": vectors_column(np.ones((1, 3)))}, "has no column vector of type"),
    ],
)
def test_forged_ones_are_refused(plain: Path, tmp_path: Path, change: dict, said: str) -> None:
    corners = {name: pa.array([0.0], pa.float32()) for name in CORNERS}
    vector = vectors_column(np.ones((1, Bundle(plain).card["dim"])))
    table = pa.table({"row": pa.array([0]), **corners, "vector": vector, **change})
    bundle = rewrite(plain, tmp_path / "forged", lambda writer: writer.add_table(REGIONS, table))
    with pytest.raises(IntegrityError, match=said):
        Searcher(bundle).regions("a dog", 3)

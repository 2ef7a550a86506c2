"""Regions in a bundle: those that were embedded, without what was removed; and what is refused of them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from made_up import build_bundle, make_run, run_command

from pipeline.errors import IntegrityError
from pipeline.index.search import Searcher
from pipeline.storage.bundle import REGIONS, Bundle, BundleWriter
from pipeline.storage.phrases import CORNERS, vectors_column


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
    run_command("index-remove", "--index", made.folder, "--image", 4, "--output", tmp_path / "less")
    assert Bundle(tmp_path / "less").image_regions().rows.tolist() == [7]
    run_command("index-remove", "--index", tmp_path / "less", "--image", 7, "--output", tmp_path / "none")
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

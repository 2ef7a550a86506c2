"""Region shards: written part by part, read as blocks, refused where they do not fit."""

from pathlib import Path

import numpy as np
import pytest
from made_up import make_run

from pipeline.errors import RejectLimitError
from pipeline.storage.commit import Provenance
from pipeline.storage.features import RegionShard, UnfinishedRegions, require_few_rejects
from pipeline.storage.manifest import Manifest

DIM = 6


def make_arrays(ids: np.ndarray, bad: tuple[int, ...] = ()) -> tuple[dict[str, np.ndarray], list[dict]]:
    """Image i has 1 + i mod 4 regions, an image in `bad` none; row j of image i says so in its features."""
    lengths = np.array([0 if i in bad else 1 + i % 4 for i in ids])
    owners = np.repeat(ids, lengths)
    places = np.concatenate([np.arange(length) for length in lengths])
    features = np.zeros((len(owners), DIM), np.float16)
    features[:, 0], features[:, 1] = owners, places
    boxes = np.stack([owners, places, owners + 1, places + 1], axis=1).astype(np.float32)
    return {"features": features, "boxes": boxes, "scores": places.astype(np.float32), "lengths": lengths}


def publish(folder: Path, manifest: Manifest, number: int, bad: tuple[int, ...] = ()) -> Path:
    rows = manifest.shard(number)
    ids = np.arange(rows.first_image, rows.last_image)
    unfinished = UnfinishedRegions(folder / f"shard-{number:05d}.h5", Provenance(folder, "extract", number), ids, 4)
    for part in unfinished.missing():
        chosen = ids[part.start : part.stop]
        faults = {place: "truncated" for place, i in enumerate(chosen) if i in bad}
        names = [f"{i}.png" for i in chosen]
        unfinished.write_part(part, make_arrays(chosen, bad), faults, names, {"filled": len(chosen)})
    unfinished.publish({})
    return unfinished.path


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    make_run(tmp_path)
    return Manifest(tmp_path / "manifest")


def test_parts_become_one_shard(tmp_path: Path, manifest: Manifest) -> None:
    shard = RegionShard(publish(tmp_path / "regions", manifest, 0, bad=(5,)))
    expected = make_arrays(np.arange(10), bad=(5,))
    for name in ("features", "boxes", "scores"):
        assert np.array_equal(shard[name], expected[name])
    assert shard["features"].dtype == np.float16 and shard.offsets.tolist() == [
        0,
        *np.cumsum(expected["lengths"]).tolist(),
    ]
    assert shard.image_id.tolist() == list(range(10)) and shard.rows == 10
    assert shard.details["rejects"] == [{"image_id": 5, "name": "5.png", "reason": "truncated"}]
    assert shard.details["counts"] == {"filled": 10} and shard.details["dim"] == DIM
    assert not (tmp_path / "regions/shard-00000.h5.parts").exists()


def test_a_part_of_unreadable_images_has_no_dimension_to_say(tmp_path: Path, manifest: Manifest) -> None:
    ids = np.arange(4)
    unfinished = UnfinishedRegions(tmp_path / "shard-00000.h5", Provenance(tmp_path, "s", 1), ids, 2)
    empty = {**make_arrays(ids[:2], bad=(0, 1)), "features": np.empty((0, 0), np.float16)}
    unfinished.write_part(range(0, 2), empty, {0: "bad", 1: "bad"}, ["a", "b"], {})
    assert unfinished.missing() == [range(2, 4)]
    unfinished.write_part(range(2, 4), make_arrays(ids[2:]), {}, ["c", "d"], {"clipped": 1})
    sidecar = unfinished.publish({})
    assert RegionShard(unfinished.path)["features"].shape == (7, DIM)
    with pytest.raises(RejectLimitError, match=r"2 of 4 images have no regions \(a: bad\); run ingest again"):
        require_few_rejects(unfinished.path, sidecar, 0.4)
    require_few_rejects(unfinished.path, sidecar, 0.5)


def test_blocks_are_those_of_a_loop(tmp_path: Path, manifest: Manifest) -> None:
    shard = RegionShard(publish(tmp_path / "regions", manifest, 0, bad=(5,)))
    images = np.array([7, 5, 0, 7, 2])
    block = shard.packed(images)
    assert block.features.dtype == np.float32
    for row, image in enumerate(images):
        rows = slice(shard.offsets[image], shard.offsets[image + 1])
        mine = slice(block.offsets[row], block.offsets[row + 1])
        for name in ("features", "boxes", "scores"):
            assert np.array_equal(getattr(block, name)[mine], shard[name][rows])
    assert shard.packed(np.array([], np.int64)).features.shape == (0, DIM)

"""Unfinished feature shards: the parts of a killed run are used again, and unsuitable features are named."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import InputError
from pipeline.storage.commit import Provenance
from pipeline.storage.features import UnfinishedShard, remove_unfinished, to_stored
from pipeline.storage.shards import FEATURES, Shard

DETAILS = {"encoder": {"name": "x"}}
FEATURE_ROWS = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float16)


def start(folder: Path, version: int = 1, part_rows: int = 4) -> UnfinishedShard:
    return UnfinishedShard(folder / "shard.h5", Provenance(folder, "extract", version), np.arange(20, 30), part_rows)


def fill(shard: UnfinishedShard, parts: int | None = None) -> None:
    for rows in shard.missing[:parts]:
        shard.keep(rows, {"features": FEATURE_ROWS[rows.start : rows.stop]})


def test_parts_are_combined_into_the_shard_and_removed(tmp_path: Path) -> None:
    shard = start(tmp_path)
    assert shard.missing == [range(0, 4), range(4, 8), range(8, 10)]
    fill(shard)
    assert sorted(path.name for path in shard.folder.glob("*.h5")) == ["0000000.h5", "0000004.h5"]
    shard.publish(DETAILS)
    fill(start(tmp_path), parts=2)  # These parts stand for the parts that a process leaves if it is killed.
    remove_unfinished(tmp_path / "shard.h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard.h5", "shard.h5.json"]
    published = Shard(tmp_path / "shard.h5", FEATURES)
    assert np.array_equal(published["features"], FEATURE_ROWS)
    assert published["image_id"].tolist() == list(range(20, 30))
    assert published.details == {"dim": 3, **DETAILS}


@pytest.mark.parametrize("other", [{"version": 2}, {"part_rows": 5}])
def test_parts_with_another_version_or_size_are_not_used(tmp_path: Path, other: dict) -> None:
    fill(start(tmp_path))
    assert start(tmp_path, **other).missing[0].start == 0


def test_a_damaged_part_is_computed_again(tmp_path: Path) -> None:
    fill(start(tmp_path))
    part = tmp_path / "shard.h5.parts" / "0000004.h5"
    part.write_bytes(part.read_bytes()[:-1])
    (tmp_path / "shard.h5.parts" / ".0000000.h5.tmp.999999999").write_bytes(b"of a process that is gone")
    assert start(tmp_path).missing == [range(4, 8), range(8, 10)]
    assert not list((tmp_path / "shard.h5.parts").glob("*.tmp.*"))


def test_features_that_do_not_fit_are_named() -> None:
    names = ["a", "b", "c"]
    features = np.array([[1, 2], [0, 0], [3, 4]], np.float32)
    assert to_stored(features, "float16", names).dtype == np.float16
    for bad, said in ((7e4, "7e.04"), (1e-7, "1e-07"), (np.nan, ""), (-np.inf, "")):
        spoilt = features.copy()
        spoilt[2] = [bad, 0]
        with pytest.raises(InputError, match=f"The features of c .*{said or 'not finite'}"):
            to_stored(spoilt, "float16", names)
    assert to_stored(np.array([[7e4, 1e-7]], np.float32), "float32", ["a"]).dtype == np.float32

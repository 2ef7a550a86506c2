"""How stored features are found to be, on shards whose faults are known."""

from pathlib import Path

import numpy as np
import pytest
from made_up import make_run, write_feature_shards

from pipeline.errors import IntegrityError
from pipeline.storage.benchmarks import Job
from pipeline.storage.features import write_features
from pipeline.storage.gather import Features, shard_path
from pipeline.storage.health import read_health
from pipeline.storage.manifest import Manifest


@pytest.fixture
def features(tmp_path: Path) -> Features:
    folder = make_run(tmp_path)
    manifest = Manifest(folder / "manifest")
    write_feature_shards(manifest, tmp_path / "made" / "net")
    return Features(manifest, tmp_path / "made")


def test_faults_are_counted_and_the_speed_is_of_all_jobs(features: Features) -> None:
    shards, images = features.manifest.n_shards, features.manifest.images.num_rows
    jobs = {"net": [Job(0.5, 1.0, 100.0)] * shards}
    (health,) = read_health(features, ["net", "never-extracted"], jobs)
    rows = np.concatenate([features.open("net", number)["features"] for number in range(shards)]).astype(np.float32)
    lengths = np.linalg.norm(rows, axis=1)
    assert (health.encoder, health.rows, health.shards, health.dim, health.dtype) == (
        "net",
        images,
        shards,
        5,
        "float16",
    )
    assert (health.length, health.spread) == (pytest.approx(lengths.mean()), pytest.approx(lengths.std()))
    assert (health.zero, health.equal, health.constant) == (1, 1, 0)
    assert health.rate == pytest.approx(images / (0.5 * shards))


def test_a_constant_column_is_counted_and_a_speed_that_is_not_of_all_shards_is_left_out(features: Features) -> None:
    shard = features.open("net", 0)
    image_id, values = np.array(shard["image_id"]), np.array(shard["features"])
    values[0] = values[3] + 1
    values[:, 3] = 2
    write_features(shard.path, values, image_id, "another", {"inputs": shard.details["inputs"]})
    (health,) = read_health(features, ["net"], {"net": [Job(0.5, 1.0, 100.0)] * (features.manifest.n_shards + 1)})
    assert (health.zero, health.equal, health.constant, health.rate) == (0, 1, 1, None)


def test_a_damaged_shard_is_refused_by_name(features: Features) -> None:
    path = shard_path(features.root / "net", 0)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="shard-00000.h5"):
        read_health(features, ["net"], {})

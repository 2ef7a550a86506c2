"""pool-regions by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from made_up import make_stage, run_command
from made_up_blocks import arguments, copy_blocks, extract, make_blocks

from pipeline.storage.parameters import ENCODER, read_parameters
from pipeline.storage.regions import RegionShard
from pipeline.storage.shards import FEATURES, Shard


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_blocks(tmp_path_factory.mktemp("made"))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return copy_blocks(made, tmp_path / "run")


def pool(run: Path, pooling: str, **changes: object) -> Shard:
    """The regions of shard 0, which are extracted first, as features of its images."""
    extract(run, **changes)
    add_pooled(run, pooling)
    run_command("pool_regions", *arguments(run, encoder=pooling))
    return Shard(run / f"features/{pooling}/shard-00000.h5", FEATURES)


def add_pooled(run: Path, pooling: str) -> None:
    """The encoder `pooling` of the regions of `plain`."""
    settings = json.loads((run / "config.yaml").read_text())
    settings["encoders"].append({"name": pooling, "architecture": "pooled", "of": "plain", "pooling": pooling})
    (run / "config.yaml").write_text(json.dumps(settings))
    make_stage("prepare_encoder", run, pooling)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_pooled_regions_are_features_of_images(run: Path, pooling: str) -> None:
    pooled = pool(run, pooling)
    regions = RegionShard(run / "regions/plain/shard-00000.h5")
    each = np.split(regions["features"], regions.offsets[1:-1])
    np.testing.assert_allclose(pooled["features"], [getattr(part, pooling)(axis=0) for part in each], rtol=1e-6)
    assert pooled["image_id"].tolist() == list(range(12))
    assert regions.commit.digest in pooled.commit.inputs.values()


def test_search_pools_the_same_regions(run: Path) -> None:
    from pipeline.config.stored import restore_encoder
    from pipeline.images.decode import decode
    from pipeline.images.opening import ImageLimits

    pooled = pool(run, "mean", proposals="grid")  # of which all is known of a photograph alone
    stored = read_parameters(run / "encoders/mean/model.safetensors", ENCODER)
    image = decode((run / "data/images/04.png").read_bytes(), ImageLimits(10**6, 1, 99))
    features = restore_encoder(stored.settings, stored.tensors).encode([image])
    np.testing.assert_allclose(features, pooled["features"][4:5], rtol=1e-3, atol=1e-4)

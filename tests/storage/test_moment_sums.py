"""The sums of parts: added up from their shards alone, used while they are of these, and replaced by them if not."""

from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest
from made_up import make_run, make_stage, open_run, write_config, write_feature_shards

from pipeline.models.linear.moments import Moments
from pipeline.storage.atomic import read_sidecar
from pipeline.storage.integrity import examine
from pipeline.storage.leftovers import remove_stale_shards
from pipeline.storage.manifest import Manifest
from pipeline.storage.moments import PairSet
from pipeline.storage.shards import MOMENTS


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Moments of five shards in parts of two, two and one."""
    run = make_run(tmp_path / "run", images=44)
    write_config(run, {"shards_per_job": 2})
    write_feature_shards(Manifest(run / "manifest"), run / "features/colour")
    for stage in ("encode_sentences", "accumulate"):
        make_stage(stage, run, *(["target"] if stage == "accumulate" else []))
    return run


def target(run: Path) -> PairSet:
    opened = open_run(run)
    texts = opened.texts({"tfidf": opened.layout.sentences("tfidf")})
    return PairSet(opened.features, texts, run / "moments/target", "target")


def read(run: Path) -> tuple[list[str], Moments]:
    """The files that `fit` reads, and their sum."""
    readers = target(run).moments([0])
    return [reader.args[0].name for reader in readers], reduce(add, (Moments.from_arrays(one()) for one in readers))


def test_a_part_is_one_file_for_whoever_adds_up(run: Path) -> None:
    names, total = read(run)
    assert names == ["00000.h5", "00001.h5", "shard-00004.h5"]
    for path in (run / "moments/target/parts").glob("*.h5*"):
        path.unlink()
    names, expected = read(run)
    assert names == [f"shard-{number:05d}.h5" for number in range(5)]
    assert total.n == expected.n == 2 * (Manifest(run / "manifest").splits == "train").sum()
    for block in ("mean_x", "mean_y", "xx", "xy", "yy"):
        np.testing.assert_allclose(getattr(total, block), getattr(expected, block), rtol=1e-5, atol=1e-4)


def test_a_sum_of_other_shards_is_not_used(run: Path) -> None:
    """The commit of a sum is of the same shards before they were made again."""
    old = (run / "moments/target/parts/00000.h5.json").read_bytes()
    write_config(run, {"shards_per_job": 3, "image_view": {"normalise": ["l2"]}})
    make_stage("accumulate", run, "target")
    (run / "moments/target/parts/00000.h5.json").write_bytes(old)
    assert read(run)[0] == ["shard-00000.h5", "shard-00001.h5", "shard-00002.h5", "00001.h5"]


def test_sums_go_with_their_parts(run: Path) -> None:
    assert not examine(run).faults
    write_config(run, {"shards_per_job": 5})
    make_stage("accumulate", run, "target")
    remove_stale_shards(run)
    left = {path.name for path in (run / "moments/target/parts").iterdir()}
    assert "00001.h5" not in left and "00001.json" not in left


def test_a_sum_says_which_shards_it_is_of(run: Path) -> None:
    sidecar = read_sidecar(run / "moments/target/parts/00001.h5", MOMENTS)
    assert sidecar.details == {"shards": [2, 2], "stored": [0]}

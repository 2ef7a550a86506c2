"""The sum of moments: added up from the shards in their order, and used while it is of these."""

from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest
from made_up import make_run, make_stage, open_run, write_config, write_feature_shards

from pipeline.models.linear.moments import Moments
from pipeline.storage.manifest import Manifest
from pipeline.storage.pairs import PairSet
from pipeline.storage.verify import examine


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Moments of five shards."""
    run = make_run(tmp_path / "run", images=44)
    write_feature_shards(Manifest(run / "manifest"), run / "features/colour")
    for stage in ("encode_sentences", "accumulate"):
        make_stage(stage, run, *(["target"] if stage == "accumulate" else []))
    return run


def target(run: Path) -> PairSet:
    opened = open_run(run)
    texts = {"tfidf": opened.layout.sentences("tfidf")}
    return PairSet(opened.features, texts, run / "moments/target")


def read(run: Path) -> tuple[list[str], Moments]:
    """The files that `fit` reads, and their sum."""
    readers = target(run).moments([0])
    return [reader.args[0].name for reader in readers], reduce(add, (Moments.from_arrays(one()) for one in readers))


def test_fit_reads_one_sum_of_all_shards(run: Path) -> None:
    names, total = read(run)
    assert names == ["sum.h5"] and not examine(run).faults
    for path in (run / "moments/target").glob("sum.h5*"):
        path.unlink()
    names, expected = read(run)
    assert names == [f"shard-{number:05d}.h5" for number in range(5)]
    assert total.n == expected.n == 2 * (Manifest(run / "manifest").splits == "train").sum()
    for block in ("mean_x", "mean_y", "xx", "xy", "yy"):
        np.testing.assert_allclose(getattr(total, block), getattr(expected, block), rtol=1e-5, atol=1e-4)


def test_the_number_of_parts_changes_no_byte(run: Path, tmp_path: Path) -> None:
    parts = 8
    other = make_run(tmp_path / "other", images=44)
    write_config(other, {"parts": parts})
    write_feature_shards(Manifest(other / "manifest"), other / "features/colour")
    for number in range(parts):
        make_stage("encode_sentences", other, "--part", number)
    make_stage("accumulate", other, "target")
    for name in ("text/tfidf/shard-00004.h5", "moments/target/shard-00004.h5", "moments/target/sum.h5"):
        assert (run / name).read_bytes() == (other / name).read_bytes()

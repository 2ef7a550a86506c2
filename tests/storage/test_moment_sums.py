"""The sum of moments: added up from the shards in their order, and used while it is of these."""

from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import make_run, make_stage, open_run, write_feature_shards

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

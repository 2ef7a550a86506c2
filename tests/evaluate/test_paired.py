"""The paired bootstrap: its estimate exactly, its interval against a normal approximation."""

import numpy as np
import pytest

from pipeline.metrics.retrieval import Bootstrap, paired_difference


def test_the_difference_is_that_of_the_recalls() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = (rng.integers(1, 40, (3, 50)) for _ in range(2))
    found = paired_difference(ours, theirs, 10, Bootstrap(200, 0))
    assert found["difference"] == pytest.approx(100 * ((ours <= 10).mean() - (theirs <= 10).mean()))
    assert found["ci95"][0] < found["difference"] < found["ci95"][1]


def test_the_interval_of_one_draw_is_the_normal_one() -> None:
    rng = np.random.default_rng(1)
    ours, theirs = (rng.integers(1, 30, (1, 2000)) for _ in range(2))
    gain = 100.0 * ((ours <= 10).astype(float) - (theirs <= 10))
    found = paired_difference(ours, theirs, 10, Bootstrap(2000, 0))
    half = 1.96 * gain.std() / np.sqrt(2000)
    assert (found["ci95"][1] - found["ci95"][0]) / 2 == pytest.approx(half, rel=0.1)


def test_pairing_takes_out_what_both_share() -> None:
    """Ranks that differ in one image only have no wide interval, however hard the images are."""
    ranks = np.random.default_rng(2).integers(1, 100, (5, 400))
    better = ranks.copy()
    better[:, 0] = 1
    ranks[:, 0] = 100
    found = paired_difference(better, ranks, 10, Bootstrap(500, 0))
    assert found["difference"] == pytest.approx(0.25)
    assert found["ci95"][0] >= 0 and found["ci95"][1] <= 1

"""The paired bootstrap: its estimate exactly, its interval against a normal approximation."""

import numpy as np
import pytest

from pipeline.metrics.ranks import Ranks
from pipeline.metrics.retrieval import Bootstrap, compare_draws, measure, paired_difference


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


RECALLS = (("image_to_sentence", "recall@1"), ("sentence_to_image", "recall@10"), ("sentence_to_image", "mean_rank"))


def draw(rng: np.random.Generator, n: int, owners: np.ndarray, worst: int) -> Ranks:
    return Ranks(rng.integers(1, worst, n), rng.integers(1, worst, len(owners)))


def test_draws_are_compared_by_the_sums_of_their_measures() -> None:
    rng = np.random.default_rng(1)
    owners = np.sort(np.concatenate([np.arange(30), rng.integers(30, size=50)]))  # one to several sentences an image
    ours, theirs = ([draw(rng, 30, owners, worst) for _ in range(count)] for worst, count in ((12, 3), (20, 2)))

    def total(ranks: Ranks) -> float:
        plain = Bootstrap(0, 0)
        own = {
            "image_to_sentence": measure(ranks.image_to_sentence, np.arange(30), plain),
            "sentence_to_image": measure(ranks.sentence_to_image, owners, plain),
        }
        return sum(own[direction][name] for direction, name in RECALLS)

    found = compare_draws(ours, theirs, owners, RECALLS, Bootstrap(300, 0))
    assert found["difference"] == pytest.approx(np.mean([*map(total, ours)]) - np.mean([*map(total, theirs)]))
    low, high = found["ci95"]
    assert low < found["difference"] < high
    assert compare_draws(ours, ours, owners, RECALLS, Bootstrap(300, 0))["difference"] == 0


def test_the_interval_of_one_draw_is_that_of_resampled_images() -> None:
    rng = np.random.default_rng(2)
    owners = np.arange(400)
    ours, theirs = (Ranks(rng.integers(1, worst, 400), np.ones(400, int)) for worst in (3, 5))
    found = compare_draws([ours], [theirs], owners, RECALLS[:1], Bootstrap(4000, 0))
    gain = 100.0 * ((ours.image_to_sentence == 1).astype(float) - (theirs.image_to_sentence == 1))
    half = 1.96 * gain.std() / np.sqrt(400)
    assert found["ci95"] == pytest.approx([gain.mean() - half, gain.mean() + half], abs=0.15 * half)
    assert found["p"] < 0.01
